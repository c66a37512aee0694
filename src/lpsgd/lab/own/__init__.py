"""The user's own model, data and loss: what a recipe can only name.

A `Problem` holds the objects. `examine` tries them before anything is trained and returns what the
recipe says of them; `loaders` makes batches of them, `objective` the loss and the scores, and
`transport` brings them to a worker process.
"""
