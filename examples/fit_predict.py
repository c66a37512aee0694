"""A classifier with scikit-learn's fit and predict, in twenty lines.

python examples/fit_predict.py
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from sklearn.metrics import accuracy_score
from sklearn.model_selection import train_test_split
from torch import nn

from lpsgd import LPSGDM, CosineP


class Classifier:
    def fit(self, x, y, steps=300, batch=128):
        x, y = torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y)
        self.net = nn.Sequential(nn.Linear(x.shape[1], 64), nn.ReLU(), nn.Linear(64, y.max() + 1))
        opt = LPSGDM(self.net.parameters(), lr=3e-3, p=CosineP(6, total_steps=steps))
        for _ in range(steps):
            chosen = torch.randint(len(y), (batch,))
            opt.zero_grad()
            nn.functional.cross_entropy(self.net(x[chosen]), y[chosen]).backward()
            opt.step()
        return self

    def predict(self, x):
        return self.net(torch.as_tensor(x, dtype=torch.float32)).argmax(1).numpy()


if __name__ == "__main__":
    x, x_test, y, y_test = train_test_split(*load_digits(return_X_y=True), random_state=0)
    print(f"test accuracy {accuracy_score(y_test, Classifier().fit(x, y).predict(x_test)):.3f}")
