"""Faults, each the smallest change to a healthy training script."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Planted:
    """One fault: the id that must be found first, in which script, by which changes, how sure."""

    id: str
    host: str
    changes: tuple[tuple[str, str], ...]
    status: str = "fail"


def fault(id: str, host: str, *changes: tuple[str, str], warn: bool = False) -> Planted:
    """A line of the table below."""
    return Planted(id, host, changes, "warn" if warn else "fail")


ZERO = "        optimizer.zero_grad(set_to_none=True)\n"
STEP = "        optimizer.step()\n"
CLIP = "        clip_grad_norm_(model.parameters(), 1.0)\n"
ONWARD = "        scheduler.step()\n"
LOSS = "        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())\n"
BACKWARD = "        loss.backward()\n"
TARGETS = "        inputs, targets = ids[:, :-1], ids[:, 1:]\n"
MADE = "    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95))\n"
TRAIN = "    model.train()\n    for step in range(steps):\n"
TIED = "            self.head.weight = self.embed.weight\n"
SCHEDULE = "lambda s: s / 2 if s < 2 else 0.5 + 0.5 * math.cos(s / 9)"
GROUPS = '    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]\n'
HAND = "            for p in model.parameters():\n                p -= 0.1 * p.grad\n                p.grad = None\n"
EARLY = "        optimizer.zero_grad()\n        loss.backward()\n        optimizer.step()\n"

PLANTED = [
    # gradients
    fault("T01", "plain", (ZERO, "")),
    fault("T01", "thirds", ("            optimizer.zero_grad()\n", "")),
    fault("T01", "by_hand", ("                p.grad = None\n", "")),
    fault("T01", "closure", ("        optimizer.zero_grad()\n", "")),
    fault("T01", "two_optimizers", ("        slow.zero_grad()\n", "")),
    fault("T02", "plain", (ZERO, ""), (BACKWARD, BACKWARD + ZERO)),
    fault(
        "T02",
        "epochs",
        ("            optimizer.zero_grad()\n", ""),
        (
            "            loss.backward()\n            optimizer.step()\n",
            "            optimizer.step()\n            loss.backward()\n            optimizer.zero_grad()\n",
        ),
    ),
    fault("T11", "plain", (STEP, STEP + STEP)),
    fault("T11", "two_optimizers", ("torch.optim.Adam(rest,", "torch.optim.Adam(model.parameters(),")),
    fault("I06", "plain", (BACKWARD, "        loss = torch.tensor(loss.item(), requires_grad=True)\n" + BACKWARD)),
    fault("I06", "plain", ("logits = model(inputs)", "logits = model(inputs).detach().requires_grad_()")),
    fault(
        "I06",
        "plain",
        (CLIP, ""),
        (MADE, MADE + "    model.embed.register_forward_hook(lambda m, i, o: o.detach())\n"),
        ("model = GPT()", "model = GPT(tied=False)"),
    ),
    fault("R01", "plain", (LOSS, LOSS + "        loss = loss / 0.0\n")),
    fault(
        "R02", "plain", (LOSS, LOSS + "        loss = loss + (0 * logits).pow(2).sum(-1).sqrt().sum()\n"), (CLIP, "")
    ),
    # optimizers
    fault(
        "O01",
        "plain",
        ("[p for p in model.parameters() if p.dim() > 1]", "list(model.blocks[0].parameters())"),
        ("[p for p in model.parameters() if p.dim() <= 1]", "list(model.blocks[1].parameters())"),
    ),
    fault(
        "O01",
        "two_optimizers",
        ("tables = [model.embed.weight, model.positions.weight]", "tables = [model.embed.weight]"),
        ("if not any(p is table for table in tables)]", "if p.dim() == 1 or p.shape[1] > 16]"),
    ),
    fault(
        "O01",
        "epochs",
        (
            TRAIN_EPOCH := "        model.train()\n",
            TRAIN_EPOCH + "        model.extra = getattr(model, 'extra', torch.nn.Linear(16, 16))\n"
            "        model.blocks[1].norm2.register_forward_hook(lambda m, i, o: o + model.extra(o))\n",
        ),
    ),
    fault(
        "O02",
        "accumulate",
        (
            ACCUMULATED := "    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)\n",
            ACCUMULATED + "    model.head = torch.nn.Linear(16, 31, bias=False)\n",
        ),
    ),
    fault("O02", "epochs", ("    scheduler = ", "    import copy\n    model = copy.deepcopy(model)\n    scheduler = ")),
    fault("O03", "plain", ('"weight_decay": 0.0', '"weight_decay": 0.1'), warn=True),
    fault(
        "O16",
        "accumulate",
        (ACCUMULATED, "    model.head.weight.data = model.embed.weight.data\n" + ACCUMULATED),
        warn=True,
    ),
    fault(
        "E01",
        "accumulate",
        (ACCUMULATED, "    model.head.weight.data.copy_(model.embed.weight.data)\n" + ACCUMULATED),
        warn=True,
    ),
    fault(
        "O05",
        "two_optimizers",
        ("torch.optim.Adam(rest, lr=1e-3)", "torch.optim.Adam(rest, lr=1e-3, weight_decay=0.03)"),
        warn=True,
    ),
    fault("O06", "plain", ("betas=(0.9, 0.95)", "betas=(0.999, 0.9)"), warn=True),
    fault(
        "O17",
        "plain",
        (CLIP, CLIP + "        model.blocks[0].qkv.weight.requires_grad_(False)\n"),
        ("        logits =", "        model.blocks[0].qkv.weight.requires_grad_(True)\n        logits ="),
    ),
    fault("O14", "plain", (ZERO, "        optimizer = torch.optim.AdamW(groups, lr=1e-3)\n" + ZERO), (ONWARD, "")),
    # rates
    fault("O07", "plain", (ONWARD, "")),
    fault(
        "O08",
        "thirds",
        ("            scheduler.step()\n", ""),
        ("        loss.backward()\n", "        loss.backward()\n        scheduler.step()\n"),
        warn=True,
    ),
    fault("O09", "plain", (STEP + ONWARD, ONWARD + STEP)),
    fault(
        "O09", "plain", (ONWARD, ""), ("        ids = text(step)\n", "        ids = text(step)\n" + ONWARD), warn=True
    ),
    fault("O12", "plain", (SCHEDULE, "lambda s: s // 100")),
    fault("O13", "plain", ("lr=1e-3", "lr=10.0"), warn=True),
    fault("O15", "plain", (TRAIN, "    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)\n" + TRAIN)),
    fault(
        "R05",
        "masked",
        ("    optimizer = ", "    model.bfloat16()\n    optimizer = "),
        ("lr=1e-3", "lr=1e-5"),
        warn=True,
    ),
    # updates
    fault("T07", "plain", (STEP, ""), (ONWARD, "")),
    fault("T07", "two_optimizers", ("        fast.step()\n", ""), warn=True),
    fault(
        "T07",
        "plain",
        (
            MADE,
            "    class Stuck(torch.optim.SGD):\n        def step(self, closure=None):\n            return None\n\n"
            "    optimizer = Stuck(model.parameters(), lr=0.1)\n",
        ),
    ),
    # clipping
    fault("T04", "scaled", ("        scaler.unscale_(optimizer)\n", "")),
    fault("T05", "plain", (CLIP, ""), (STEP, STEP + CLIP)),
    fault("T05", "plain", (CLIP, ""), (BACKWARD, CLIP + BACKWARD)),
    fault(
        "T05",
        "plain",
        (TRAIN, "    handed = model.parameters()\n" + TRAIN),
        (CLIP, "        clip_grad_norm_(handed, 1.0)\n"),
    ),
    fault(
        "T05",
        "accumulate",
        (
            "            (loss / counted).backward()\n",
            "            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1e-3)\n"
            "            (loss / counted).backward()\n",
        ),
        ("        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.5)\n", ""),
    ),
    # modes
    fault("T06", "plain", ("    model.train()\n    for", "    model.eval()\n    for")),
    fault(
        "T06", "plain", ("            evaluate(model)\n            model.train()\n", "            evaluate(model)\n")
    ),
    fault(
        "T06",
        "plain",
        ("    model.train()\n    for", "    model.train()\n    model.blocks[0].eval()\n    for"),
        warn=True,
    ),
    fault("V02", "plain", ("    model.eval()\n", ""), ("        if step == 1:", "        if step == 0:"), warn=True),
    # batches
    fault("D17", "plain", ("ids = text(step)", "ids = text(0)"), warn=True),
    fault(
        "D18",
        "frozen",
        ("        return self.tags(self.body(ids))", "        ids[:, 0] = 1\n        return self.tags(self.body(ids))"),
        warn=True,
    ),
    # what the loss asks for
    fault("D01", "plain", (TARGETS, "        inputs, targets = ids[:, :-1], ids[:, :-1]\n")),
    fault("D01", "masked", ("model(inputs)", "model(ids)"), warn=True),
    fault("D02", "plain", (TARGETS, "        inputs, targets = ids[:, :-2], ids[:, 2:]\n")),
    fault("D02", "labels", ("labels[:, 1:]", "labels[:, 2:]"), ("logits[:, :-1]", "logits[:, :-2]")),
    fault("D02", "plain", (TARGETS, "        inputs, targets = ids[:, 1:], ids[:, :-1]\n")),
    fault("D04", "labels", ("PAD, EOS = 0, 1", "PAD, EOS = 0, 0"), warn=True),
    fault("D05", "labels", ("ids.masked_fill(~mask, -100)", "ids")),
    fault("D05", "translation", ("ignore_index=PAD, ", "")),
    fault("D12", "plain", (LOSS, "        targets = targets[torch.tensor([1, 2, 3, 0])]\n" + LOSS)),
    fault("D12", "plain", (LOSS, "        targets = text(50 + step)[:, 1:]\n" + LOSS), warn=True),
    fault("M01", "plain", ("model = GPT()", "model = GPT(causal=False)")),
    fault(
        "L01",
        "labels",
        (
            "F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)",
            "F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100, "
            'reduction="none").mean()',
        ),
    ),
    fault(
        "L02",
        "labels",
        (
            "F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)",
            "torch.stack([F.cross_entropy(x[:-1], y[1:]) for x, y in zip(logits, labels)]).mean()",
        ),
    ),
    fault(
        "L03",
        "plain",
        ("logits = model(inputs)", "logits = model(inputs)"),
        (LOSS, "        logits = logits.softmax(-1)\n" + LOSS),
    ),
    fault("L04", "plain", (LOSS, "        loss = F.nll_loss(logits.flatten(0, 1), targets.flatten())\n")),
    fault("L07", "plain", (LOSS, "        loss = F.cross_entropy(logits.reshape(len(ids), -1, 12), targets)\n")),
    fault(
        "L10",
        "plain",
        (
            "F.cross_entropy(logits.flatten(0, 1), targets.flatten())\n        optimizer",
            'F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")\n        optimizer',
        ),
        warn=True,
    ),
    fault("T03", "thirds", (" / ACCUMULATE\n", "\n")),
    fault(
        "T03",
        "accumulate",
        ('ignore_index=IGNORED, reduction="sum"', "ignore_index=IGNORED"),
        ("(loss / counted)", "(loss / MICRO)"),
        warn=True,
    ),
    fault("A13", "plain", ("model = GPT()", "model = GPT()\n    model.spare = torch.nn.Linear(4, 4)"), warn=True),
    fault("T03", "thirds", ("        loss.backward()\n", "        optimizer.zero_grad()\n        loss.backward()\n")),
    fault(
        "L03",
        "plain",
        ("logits = model(inputs)", "logits = model(inputs)"),
        ("model = GPT()", "model = GPT(); model.head.register_forward_hook(lambda m, i, o: o.softmax(-1))"),
    ),
    fault(
        "L04",
        "plain",
        ("model = GPT()", "model = GPT(); model.norm.register_forward_hook(lambda m, i, o: 3 * o)"),
        (LOSS, "        loss = F.nll_loss(logits.flatten(0, 1), targets.flatten())\n"),
    ),
    fault("T02", "plain", (BACKWARD, "")),
    fault("D01", "translation", ("model(src, tgt[:, :-1])", "model(src, tgt)"), ("tgt[:, 1:].reshape", "tgt.reshape")),
]
