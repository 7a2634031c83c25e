"""The models as their formulas say, in numpy and float64: whole sequences, no cache, no speed.

T tokens, H hidden width, h heads. A matrix W is stored `[out, in]`, so a row vector x goes through it as `x @ W.T`.
Norms inside attention use 1e-6; all others `rms_norm_eps`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.reference.loader import Array, Weights

INNER_EPS = 1e-6

Ids = NDArray[np.int64]
Route = tuple[Ids, Array]  # experts of each token and their weights, `[T, k]`
Routes = list[Route]


@dataclass(frozen=True)
class Output:
    """logits `[T, vocab]`, hidden `[layers, T, H]` (the stream leaving each layer), and of each MoE layer the chosen
    experts and their weights `[MoE layers, T, k]`, heaviest first."""

    logits: Array
    hidden: Array
    topk_ids: Ids
    topk_weights: Array


class ReferenceModel:
    """A checkpoint's weights and config behind one call: `model(ids)`."""

    def __init__(self, weights: Weights) -> None:
        self.w = weights
        self.c: dict[str, Any] = weights.config
        self.eps: float = self.c["rms_norm_eps"]

    def __call__(self, ids: Sequence[int]) -> Output:
        """Row t of the logits predicts the token after `ids[: t + 1]`."""
        x = self.w["embed_tokens"][list(ids)]
        blocks: list[Array] = []
        hidden: list[Array] = []
        routes: Routes = []
        for i in range(self.c["num_hidden_layers"]):
            if self.c.get("attn_res_block_size"):
                x = self.residual_block(i, x, blocks, routes)
            else:
                x = x + self.attention(i, rms(x, self.w[f"layers.{i}.input_layernorm"], self.eps))
                x = x + self.ffn(i, rms(x, self.w[f"layers.{i}.post_attention_layernorm"], self.eps), routes)
            hidden.append(x)
        if self.c.get("attn_res_block_size"):
            x = self.mix(blocks, x, "output_attn_res")
        head = self.w["embed_tokens" if self.c["tie_word_embeddings"] else "lm_head"]
        return Output(
            logits=rms(x, self.w["norm"], self.eps) @ head.T,
            hidden=np.array(hidden),
            topk_ids=np.array([chosen for chosen, _ in routes]),
            topk_weights=np.array([weights for _, weights in routes]),
        )

    def residual_block(self, i: int, p: Array, blocks: list[Array], routes: Routes) -> Array:
        """One layer with attention residuals: p is the running prefix sum, `blocks` the sums sealed before."""
        layer = f"layers.{i}"
        h = self.mix(blocks, p, f"{layer}.self_attention_res") if blocks else p
        starts_block = i % self.c["attn_res_block_size"] == 0
        if starts_block:
            blocks.append(p)
        a = self.attention(i, rms(h, self.w[f"{layer}.input_layernorm"], self.eps))
        p = a if starts_block else p + a
        h = self.mix(blocks, p, f"{layer}.mlp_res")
        return p + self.ffn(i, rms(h, self.w[f"{layer}.post_attention_layernorm"], self.eps), routes)

    def mix(self, blocks: list[Array], p: Array, name: str) -> Array:
        """Softmax-weighted sum of the sealed sums and the running one: keys normalized, values raw."""
        values = np.stack([*blocks, p])
        keys = values / np.sqrt(np.mean(values**2, axis=-1, keepdims=True) + self.eps)
        scores = keys @ (self.w[f"{name}_norm"] * self.w[f"{name}_proj"][0])
        return np.einsum("jt,jth->th", softmax(scores, axis=0), values)

    def attention(self, i: int, x: Array) -> Array:
        """Layer i's attention; the layer maps count from 1."""
        if i + 1 in self.c["linear_attn_config"]["kda_layers"]:
            return self.kda(f"layers.{i}.self_attn", x)
        return self.mla(f"layers.{i}.self_attn", x)

    def kda(self, name: str, x: Array) -> Array:
        """Kimi delta attention: a state S `[h, D_k, D_v]`, decayed by channel and corrected by the delta rule."""
        w, c = self.w, self.c["linear_attn_config"]
        T, h, D = len(x), c["num_heads"], c["head_dim"]
        q, k, v = (
            silu(causal_conv(x @ w[f"{name}.{r}_proj"].T, w[f"{name}.{r}_conv1d"][:, 0])).reshape(T, h, D)
            for r in "qkv"
        )
        q, k = unit(q), unit(k)
        z = (x @ w[f"{name}.f_a_proj"].T @ w[f"{name}.f_b_proj"].T + w[f"{name}.dt_bias"]).reshape(T, h, D)
        rate = np.exp(w[f"{name}.A_log"].reshape(-1)[:h, None])
        bound = c.get("gate_lower_bound")
        g = -rate * softplus(z) if bound is None else bound * sigmoid(rate * z)
        beta = sigmoid(x @ w[f"{name}.b_proj"].T)
        if c.get("use_full_rank_gate"):
            gate = x @ w[f"{name}.g_proj"].T
        else:
            gate = x @ w[f"{name}.g_a_proj"].T @ w[f"{name}.g_b_proj"].T
        o = np.empty((T, h, D))
        S = np.zeros((h, D, D))
        for t in range(T):
            S = np.exp(g[t])[:, :, None] * S
            delta = v[t] - np.einsum("hkv,hk->hv", S, k[t])
            S = S + (beta[t][:, None] * k[t])[:, :, None] * delta[:, None, :]
            o[t] = np.einsum("hkv,hk->hv", S, q[t]) * D**-0.5
        y = rms(o, w[f"{name}.o_norm"], self.eps) * sigmoid(gate.reshape(T, h, D))
        return y.reshape(T, h * D) @ w[f"{name}.o_proj"].T

    def mla(self, name: str, x: Array) -> Array:
        """Latent attention: keys and values expand from a latent c, one shared part of the key comes beside it."""
        w, c = self.w, self.c
        T, h, rank = len(x), c["num_attention_heads"], c["kv_lora_rank"]
        n, r = c["qk_nope_head_dim"], c["qk_rope_head_dim"]
        if c.get("q_lora_rank") is None:
            q = x @ w[f"{name}.q_proj"].T
        else:
            q = rms(x @ w[f"{name}.q_a_proj"].T, w[f"{name}.q_a_layernorm"], INNER_EPS) @ w[f"{name}.q_b_proj"].T
        q_n, q_r = np.split(q.reshape(T, h, n + r), [n], axis=-1)
        latent, k_r = np.split(x @ w[f"{name}.kv_a_proj_with_mqa"].T, [rank], axis=-1)
        latent = rms(latent, w[f"{name}.kv_a_layernorm"], INNER_EPS)
        k_n, v = np.split((latent @ w[f"{name}.kv_b_proj"].T).reshape(T, h, -1), [n], axis=-1)
        scores = np.einsum("thn,shn->hts", q_n, k_n) + np.einsum("thr,sr->hts", q_r, k_r)
        scores = np.where(np.tril(np.ones((T, T), dtype=bool)), scores * (n + r) ** -0.5, -np.inf)
        o = np.einsum("hts,shv->thv", softmax(scores, axis=-1), v).reshape(T, -1)
        if c.get("mla_use_output_gate"):
            o = o * sigmoid(x @ w[f"{name}.g_proj"].T)
        return o @ w[f"{name}.o_proj"].T

    def ffn(self, i: int, x: Array, routes: Routes) -> Array:
        """Layer i's feed-forward part; a MoE layer adds its routing to `routes`."""
        if i < self.c["first_k_dense_replace"] or i % self.c["moe_layer_freq"]:
            return self.mlp(f"layers.{i}.mlp", x)
        ids, weights = self.route(f"layers.{i}.block_sparse_moe.gate", x)
        routes.append((ids, weights))
        return self.experts(f"layers.{i}.block_sparse_moe", x, ids, weights)

    def mlp(self, name: str, x: Array) -> Array:
        """A gated MLP: dense layers and shared experts."""
        gate, up, down = (self.w[f"{name}.{part}_proj"] for part in ("gate", "up", "down"))
        return self.act(x @ gate.T, x @ up.T) @ down.T

    def act(self, g: Array, u: Array) -> Array:
        """SiLU times up, or SiTU: the gate capped smoothly at beta, up at lambda."""
        if self.c["hidden_act"] == "silu":
            return silu(g) * u
        beta, cap = self.c["activation_situ_beta"], self.c.get("activation_situ_linear_beta")
        if cap is not None:
            u = cap * np.tanh(u / cap)
        return beta * np.tanh(g / beta) * sigmoid(g) * u

    def route(self, name: str, x: Array) -> Route:
        """Experts of each token and their weights, heaviest first. The bias chooses but does not weigh."""
        c, k = self.c, self.c["num_experts_per_token"]
        z = x @ self.w[name].T
        s = sigmoid(z) if c["moe_router_activation_func"] == "sigmoid" else softmax(z, axis=-1)
        choice = s + self.w[f"{name}.e_score_correction_bias"]
        if c["num_expert_group"] > c["topk_group"]:
            grouped = choice.reshape(len(x), c["num_expert_group"], -1)
            best_two = np.sort(grouped, axis=-1)[..., -2:].sum(axis=-1)
            kept = np.zeros(best_two.shape, dtype=bool)
            np.put_along_axis(kept, top(best_two, c["topk_group"]), True, axis=-1)
            choice = np.where(kept[..., None], grouped, -np.inf).reshape(choice.shape)
        ids = top(choice, k)
        weights = np.take_along_axis(s, ids, axis=-1)
        if k > 1 and c["moe_renormalize"]:
            weights = weights / (weights.sum(axis=-1, keepdims=True) + 1e-20)
        heaviest = top(weights, k)
        ids, weights = (np.take_along_axis(values, heaviest, axis=-1) for values in (ids, weights))
        return ids, weights * c["routed_scaling_factor"]

    def experts(self, name: str, x: Array, ids: Ids, weights: Array) -> Array:
        """The chosen experts' weighted sum, inside the latent space if there is one, and the shared expert on x."""
        w, latent = self.w, self.c.get("routed_expert_hidden_size") is not None
        u = x @ w[f"{name}.routed_expert_down_proj"].T if latent else x
        y = np.zeros_like(u)
        for e in np.unique(ids):
            w1, w3, w2 = (w[f"{name}.experts.{e}.{part}"] for part in ("w1", "w3", "w2"))
            tokens, slots = np.nonzero(ids == e)
            y[tokens] += weights[tokens, slots][:, None] * (self.act(u[tokens] @ w1.T, u[tokens] @ w3.T) @ w2.T)
        if latent:
            if self.c["latent_moe_use_norm"]:
                y = rms(y, w[f"{name}.routed_expert_norm"], self.eps)
            y = y @ w[f"{name}.routed_expert_up_proj"].T
        return y + self.mlp(f"{name}.shared_experts", x) if self.c["num_shared_experts"] else y


def rms(x: Array, weight: Array, eps: float) -> Array:
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps) * weight


def unit(x: Array) -> Array:
    """x over its length, per head."""
    return x / np.sqrt(np.sum(x**2, axis=-1, keepdims=True) + INNER_EPS)


def causal_conv(x: Array, taps: Array) -> Array:
    """Depthwise over time, x `[T, C]`, taps `[C, 4]` with the oldest first; before the beginning lie zeros."""
    n = taps.shape[1]
    padded = np.concatenate([np.zeros((n - 1, x.shape[1])), x])
    return sum((padded[j : j + len(x)] * taps[:, j] for j in range(n)), np.zeros_like(x))


def sigmoid(z: Array) -> Array:
    return 0.5 * (1.0 + np.tanh(0.5 * z))


def silu(z: Array) -> Array:
    return z * sigmoid(z)


def softplus(z: Array) -> Array:
    return np.logaddexp(0.0, z)


def softmax(z: Array, axis: int) -> Array:
    e = np.exp(z - z.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def top(scores: Array, k: int) -> Ids:
    """Positions of the k highest along the last axis, highest first, the lower one first among equals."""
    return np.argsort(-scores, axis=-1, kind="stable")[..., :k]
