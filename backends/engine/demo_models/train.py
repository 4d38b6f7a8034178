"""Trains the embedded pair on a CPU or a GPU: `python -m backends.engine.demo_models.train --out DIR`.

The target learns from the answers; the draft learns the target's distribution on every third batch of the same
stream, and alone with the finished target at the end.
"""

import argparse
import json
import logging
import os
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from backends.engine.demo_models.muon import Muon, has_bfloat16
from backends.engine.demo_models.networks import DRAFT_SHAPE, TARGET_SHAPE, make_network, quicken
from backends.engine.demo_models.tokenizer import CHAT_TEMPLATE, load_tokenizer, train_tokenizer
from backends.engine.demo_models.training_stream import TrainingBatch, TrainingStream, held_out_batches

MATRIX_RATE = 4e-3
OTHER_RATE = 4e-3
WARM_UP_STEPS = 60
LEVEL_SHARE = 0.25
"""Texts reach their full length after this share of the target's run."""
REPORT_S = 30.0
SCORE_S = 300.0
CHECKPOINT_S = 240.0

_log = logging.getLogger(__name__)


class Learner:
    """One network with its two optimizers: Muon for the matrices, AdamW for embedding and norms."""

    def __init__(self, network: Qwen3ForCausalLM, *, share_of_rates: float = 1.0) -> None:
        self.network = network
        matrix_rate, other_rate = MATRIX_RATE * share_of_rates, OTHER_RATE * share_of_rates
        matrices = [p for name, p in network.named_parameters() if p.ndim == 2 and "embed" not in name]
        others = [p for name, p in network.named_parameters() if p.ndim != 2 or "embed" in name]
        self.optimizers: list[tuple[torch.optim.Optimizer, float]] = [
            (Muon(matrices, lr=matrix_rate), matrix_rate),
            (torch.optim.AdamW(others, lr=other_rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True), other_rate),
        ]
        self.steps = 0

    def logits(self, batch: TrainingBatch) -> Tensor:
        """[N, V] float32 at the answers' positions."""
        device = batch.tokens.device
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=has_bfloat16(device)):
            hidden = self.network.model(input_ids=batch.tokens, use_cache=False).last_hidden_state
            chosen = hidden.flatten(0, 1).index_select(0, batch.rows)
            logits: Tensor = self.network.lm_head(chosen)
        return logits.float()

    def update(self, loss: Tensor, share_of_rate: float) -> None:
        """One step down from `loss`."""
        self.steps += 1
        warm_up = min(1.0, self.steps / WARM_UP_STEPS)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        for optimizer, rate in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * share_of_rate * warm_up
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state(self) -> dict[str, object]:
        """All that a resumed run needs beside the weights."""
        return {"steps": self.steps, "optimizers": [optimizer.state_dict() for optimizer, _ in self.optimizers]}

    def restore(self, state: dict[str, object]) -> None:
        """Takes up a state of `state()`."""
        self.steps = int(state["steps"])  # type: ignore[call-overload]  # written by state()
        for (optimizer, _), saved in zip(self.optimizers, state["optimizers"], strict=True):  # type: ignore[call-overload]
            optimizer.load_state_dict(saved)


class WorkClock:
    """Seconds of work: CPU time over the threads, which a stopped or crowded process does not spend."""

    def __init__(self, threads: int, *, spent_s: float) -> None:
        self._threads = threads
        self._start_s = time.process_time() - spent_s * threads

    def elapsed_s(self) -> float:
        """Seconds of work since the start, former runs included."""
        return (time.process_time() - self._start_s) / self._threads


def rate_share(progress: float) -> float:
    """The learning rate over its peak: flat, then linear to zero over the last 60 %."""
    return min(1.0, max(0.0, (1.0 - progress) / 0.6))


def learned(name: str, losses: list[float], steps: int) -> str:
    """What a network learned since the last report: its mean loss and its steps so far; nothing where it did not."""
    return f"  {name} loss {sum(losses) / len(losses):.4f}, step {steps}" if losses else ""


def exact_shares(learner: Learner, held_out: dict[str, list[TrainingBatch]]) -> dict[str, float]:
    """Share of held-out answers whose every token is the greedy choice: what greedy decoding would get right."""
    shares = {}
    with torch.no_grad():
        for task, batches in held_out.items():
            right = total = 0
            for batch in batches:
                hits = (learner.logits(batch).argmax(-1) == batch.labels).float()
                worst = hits.new_ones(len(batch.tokens)).scatter_reduce(0, batch.owner, hits, "amin")
                right += int(worst.sum())
                total += len(worst)
            shares[task] = right / total
    shares["all"] = sum(shares.values()) / len(shares)
    return shares


class TrainingRun:
    """A training run in a folder: the pair, its stream, its clock."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.folder: Path = options.out
        self.options = options
        self.folder.mkdir(parents=True, exist_ok=True)
        tokenizer_folder = self.folder / "tokenizer"
        if not (options.resume and tokenizer_folder.exists()):
            if options.start:
                tokenizer = load_tokenizer(options.start[0] / "target")
            else:
                tokenizer = train_tokenizer(options.seed, conversations=options.tokenizer_conversations)
            tokenizer.chat_template = CHAT_TEMPLATE
            tokenizer.save_pretrained(tokenizer_folder)
        self.tokenizer: PreTrainedTokenizerFast = load_tokenizer(tokenizer_folder)
        torch.manual_seed(options.seed)
        self.device = torch.device(options.device)
        rates = options.share_of_rates
        self.target = Learner(make_network(TARGET_SHAPE, self.tokenizer), share_of_rates=rates)
        self.draft = Learner(make_network(DRAFT_SHAPE, self.tokenizer), share_of_rates=rates)
        for learner in (self.target, self.draft):
            # the method as transformers redefines it is typed for another thing
            torch.nn.Module.to(learner.network, self.device)
            quicken(learner.network, compiles=options.compile)
        self.tokens = 0
        self.history: list[dict[str, object]] = []
        self.former: dict[str, object] | None = None
        if options.start:
            self._start_from(options.start)
        spent_s = self._restore() if options.resume else 0.0
        self.clock = WorkClock(options.threads, spent_s=spent_s)
        # a resumed run draws from a fresh seed: it must not see its first batches again
        seed = options.seed * 1000 + len(self.history) + 1
        self.stream = TrainingStream(self.tokenizer, seed=seed, batch_tokens=options.batch_tokens)
        held_out = held_out_batches(self.tokenizer, seed=options.seed + 77, per_task=options.held_out)
        self.held_out = {task: [batch.to(self.device) for batch in batches] for task, batches in held_out.items()}

    def go(self) -> None:
        """Trains both, then the draft alone; reports, scores and saves on the way."""
        target_s, draft_s = self.options.minutes * 60, self.options.draft_minutes * 60
        losses: list[float] = []
        draft_losses: list[float] = []
        mark_s, mark_tokens = time.monotonic(), self.tokens
        start_s = self.clock.elapsed_s()
        next_score_s, next_save_s = start_s + SCORE_S, start_s + CHECKPOINT_S
        has_ended = start_s >= target_s
        self.stream.level = self._level(start_s / target_s)
        for step, batch in enumerate(batch.to(self.device) for batch in self.stream):
            now_s = self.clock.elapsed_s()
            self.stream.level = self._level(now_s / target_s)
            if now_s >= target_s + draft_s:
                break
            if now_s >= target_s and not has_ended:
                has_ended = True
                self._score("target finished")
                self._save()
            if now_s < target_s:
                losses.append(self._train_target(batch, now_s / target_s, with_draft=step % 3 == 0, draft=draft_losses))
            else:
                with torch.no_grad():
                    wanted = self.target.logits(batch)
                progress = (now_s - target_s) / draft_s
                draft_losses.append(self._train_draft(batch, wanted, 0.5 * (1 - progress)))
            self.tokens += batch.num_tokens
            wall_s = time.monotonic() - mark_s
            if wall_s >= REPORT_S:
                _log.info(
                    "%5.1f min  %6.2f M tokens  %5.0f tokens/s  level %.2f%s%s",
                    now_s / 60, self.tokens / 1e6, (self.tokens - mark_tokens) / wall_s, self.stream.level,
                    learned("target", losses, self.target.steps), learned("draft", draft_losses, self.draft.steps),
                )  # fmt: skip
                losses, draft_losses = [], []
                mark_s, mark_tokens = time.monotonic(), self.tokens
            if now_s >= next_score_s:
                self._score("scores")
                next_score_s = self.clock.elapsed_s() + SCORE_S
            if now_s >= next_save_s:
                self._save()
                next_save_s = self.clock.elapsed_s() + CHECKPOINT_S
        self._score("draft finished")
        self._save(is_finished=True)

    def _level(self, progress: float) -> float:
        return float(self.options.level) if self.options.start else min(1.0, progress / LEVEL_SHARE)

    def _train_target(self, batch: TrainingBatch, progress: float, *, with_draft: bool, draft: list[float]) -> float:
        logits = self.target.logits(batch)
        loss = functional.cross_entropy(logits, batch.labels)
        self.target.update(loss, rate_share(progress))
        if with_draft:
            draft.append(self._train_draft(batch, logits.detach(), max(0.5, rate_share(progress))))
        return loss.item()

    def _train_draft(self, batch: TrainingBatch, wanted: Tensor, share_of_rate: float) -> float:
        loss = functional.kl_div(
            functional.log_softmax(self.draft.logits(batch), -1),
            functional.log_softmax(wanted, -1),
            reduction="batchmean",
            log_target=True,
        )
        self.draft.update(loss, share_of_rate)
        return loss.item()

    def _score(self, title: str) -> None:
        minutes = self.clock.elapsed_s() / 60
        for name, learner in (("target", self.target), ("draft", self.draft)):
            shares = exact_shares(learner, self.held_out)
            self.history.append({"minutes": minutes, "tokens": self.tokens, "model": name, "exact": shares})
            listed = "  ".join(f"{task} {share:.2f}" for task, share in shares.items())
            _log.info("%5.1f min  %s, %s: %s", minutes, title, name, listed)

    def _save(self, *, is_finished: bool = False) -> None:
        """Writes weights, training state and record; each file appears whole or not at all."""
        for name, learner in (("target", self.target), ("draft", self.draft)):
            weights = {
                key: value.contiguous()
                for key, value in learner.network.state_dict().items()
                if key != "lm_head.weight"
            }
            save_file(weights, self.folder / f"{name}.safetensors.part", metadata={"format": "pt"})
            torch.save(learner.state(), self.folder / f"{name}.state.part")
            os.replace(self.folder / f"{name}.safetensors.part", self.folder / f"{name}.safetensors")
            os.replace(self.folder / f"{name}.state.part", self.folder / f"{name}.state")
        record = {
            "spent_s": self.clock.elapsed_s(),
            "tokens": self.tokens,
            "is_finished": is_finished,
            "seed": self.options.seed,
            "minutes": self.options.minutes,
            "draft_minutes": self.options.draft_minutes,
            "threads": self.options.threads,
            "batch_tokens": self.options.batch_tokens,
            "former": self.former,
            "history": self.history,
        }
        part = self.folder / "record.json.part"
        part.write_text(json.dumps(record, indent=1))
        os.replace(part, self.folder / "record.json")
        _log.info("saved to %s%s", self.folder, ", finished" if is_finished else "")

    def _start_from(self, pairs: list[Path]) -> None:
        """Takes the mean of the pairs' weights, and counts the training of the one that has had most."""
        for name, learner in (("target", self.target), ("draft", self.draft)):
            weights = [load_file(pair / name / "model.safetensors") for pair in pairs]
            mean = {key: torch.stack([one[key].float() for one in weights]).mean(0) for key in weights[0]}
            learner.network.load_state_dict(mean, strict=False)
        scores = [json.loads((pair / "scores.json").read_text()) for pair in pairs]
        self.former = {name: max(one[name] for one in scores) for name in ("trained_tokens", "cpu_minutes")}

    def _restore(self) -> float:
        for name, learner in (("target", self.target), ("draft", self.draft)):
            learner.network.load_state_dict(load_file(self.folder / f"{name}.safetensors"), strict=False)
            learner.restore(torch.load(self.folder / f"{name}.state", weights_only=True))
        record = json.loads((self.folder / "record.json").read_text())
        self.tokens, self.history = record["tokens"], record["history"]
        return float(record["spent_s"])


def main(arguments: list[str] | None = None) -> None:
    """Reads the options and trains."""
    parser = argparse.ArgumentParser(description="Train the embedded draft/target pair.")
    parser.add_argument("--out", type=Path, required=True, help="folder for checkpoints and the tokenizer")
    parser.add_argument(
        "--start", type=Path, action="append", help="an exported pair to go on from; several: from their mean"
    )
    parser.add_argument("--level", type=float, default=1.0, help="with --start: how long texts are throughout, 0..1")
    parser.add_argument("--share-of-rates", type=float, default=1.0, help="of the learning rates; less with --start")
    parser.add_argument("--minutes", type=float, default=95.0, help="CPU minutes per thread for the target")
    parser.add_argument("--draft-minutes", type=float, default=10.0, help="further minutes for the draft alone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch-tokens", type=int, default=6144)
    parser.add_argument("--held-out", type=int, default=48, help="held-out prompts per task to score on the way")
    parser.add_argument(
        "--tokenizer-conversations", type=int, default=20_000, help="conversations that a new tokenizer is made of"
    )
    parser.add_argument("--compile", action="store_true", help="compile the small parts (needs a C++ compiler)")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in the folder")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(options.threads)
    TrainingRun(options).go()


if __name__ == "__main__":
    main()
