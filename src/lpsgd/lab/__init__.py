"""The laboratory: recipe -> plan -> execute -> record -> analyse -> show.

Its stages speak through files: a run is a folder, and everything after training reads only those
folders. Nothing here is imported by ``import lpsgd``.
"""
