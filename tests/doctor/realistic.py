"""Training scripts as people write them, with nothing to find."""

from __future__ import annotations

HEAD = """
import torch, braze
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
"""

CLASSIFIER = (
    HEAD
    + """
import argparse
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 16, 3)
        self.drop, self.fc1, self.fc2 = nn.Dropout(0.25), nn.Linear(576, 32), nn.Linear(32, 10)
    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        return F.log_softmax(self.fc2(self.drop(F.relu(self.fc1(torch.flatten(x, 1))))), dim=1)

def train(model, loader, optimizer, epoch):
    model.train()
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.nll_loss(model(x), y)
        loss.backward()
        optimizer.step()
        if i % 10 == 0:
            print(f"epoch {epoch}, batch {i}: {loss.item():.3f}")

def test(model, loader):
    model.eval()
    right = 0
    with torch.no_grad():
        for x, y in loader:
            right += model(x).argmax(1).eq(y).sum().item()
    print(right / len(loader.dataset))

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    epochs = parser.parse_args().epochs
    net = Net()
    model = braze.compile(net)
    optimizer = torch.optim.Adadelta(net.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)
    data = TensorDataset(torch.randn(128, 1, 16, 16), torch.randint(0, 10, (128,)))
    for epoch in range(epochs):
        train(model, DataLoader(data, 32, shuffle=True), optimizer, epoch)
        test(model, DataLoader(data, 64))
        schedule.step()

if __name__ == "__main__":
    main()
"""
)

LANGUAGE_MODEL = (
    HEAD
    + """
class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n1, self.n2, self.qkv, self.out = nn.LayerNorm(d), nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, 4, d // 4).transpose(1, 2) for y in self.qkv(self.n1(x)).split(d, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.out(y)
        return x + self.mlp(self.n2(x))

class Model(nn.Module):
    def __init__(self, words, d, block):
        super().__init__()
        self.words, self.places = nn.Embedding(words, d), nn.Embedding(block, d)
        self.blocks = nn.ModuleList(Block(d) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, words, bias=False)
        self.words.weight = self.head.weight
    def forward(self, ids, wanted=None):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return logits, None if wanted is None else F.cross_entropy(logits.flatten(0, 1), wanted.flatten())

net = Model(64, 32, 16)
model = braze.compile(net)
groups = [{"params": [p for p in net.parameters() if p.dim() > 1], "weight_decay": 0.1}]
groups += [{"params": [p for p in net.parameters() if p.dim() < 2], "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=3e-4)
text = torch.randint(0, 64, (4096,))
for step in range(12):
    for group in optimizer.param_groups:
        group["lr"] = 3e-4 * min(1, (step + 1) / 10)
    starts = torch.randint(len(text) - 17, (8,))
    x, y = (torch.stack([text[i + o : i + o + 16] for i in starts]) for o in (0, 1))
    _, loss = model(x, y)
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if step % 10 == 0:
        print(step, loss.item())
"""
)

WHOLE_STEP = (
    HEAD
    + """
net = nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.SiLU(), nn.Linear(64, 8))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)

@braze.compile
def train_step(x, y):
    loss = F.mse_loss(net(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss

losses = [train_step(torch.randn(64, 32), torch.randn(64, 8)).detach() for _ in range(12)]
print(torch.stack(losses).mean().item())
"""
)

TWO_MODELS = (
    HEAD
    + """
makes = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))
judges = nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
g, d = braze.compile(makes), braze.compile(judges)
for_g, for_d = (torch.optim.Adam(m.parameters(), lr=2e-4, betas=(0.5, 0.999)) for m in (makes, judges))
average = torch.optim.swa_utils.AveragedModel(makes, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99))
for step in range(10):
    real, fake = torch.randn(32, 16), g(torch.randn(32, 8))
    loss = F.softplus(-d(real)).mean() + F.softplus(d(fake.detach())).mean()
    for_d.zero_grad()
    loss.backward()
    for_d.step()
    loss = F.softplus(-d(fake)).mean()
    for_g.zero_grad()
    loss.backward()
    for_g.step()
    average.update_parameters(makes)
"""
)

ACCUMULATION = (
    HEAD
    + """
from torch.utils.data import DataLoader
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 96
    def __getitem__(self, i):
        return {"x": torch.full((16,), i / 96), "label": torch.tensor(i % 4)}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Conv1d(4, 16, 3), nn.Linear(16, 4)
    def forward(self, x, label=None):
        out = self.head(self.body(x.unflatten(1, (4, 4)))[:, :, -1])
        return {"logits": out, "loss": F.cross_entropy(out, label)}
net = Net()
model = torch.compile(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, s / 5))
for epoch in range(2):
    for i, batch in enumerate(DataLoader(Rows(), batch_size=8, shuffle=True, drop_last=True)):
        loss = model(**batch)["loss"] / 4
        loss.backward()
        if i % 4 == 3:
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
"""
)

REALISTIC = {
    "classifier": CLASSIFIER,
    "language model": LANGUAGE_MODEL,
    "whole step": WHOLE_STEP,
    "two models": TWO_MODELS,
    "accumulation": ACCUMULATION,
}
