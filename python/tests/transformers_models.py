"""Tiny random models of the transformers package, unmodified, in four layouts.

    python transformers_models.py [NAME ...]

compares loss and gradients with one device's and prints a line a model.
test_transformers.py is the test.
"""

import copy
import sys
import time
import traceback
import warnings

import torch
from torch import nn

import tessera as ts
from tessera import Replicate, Shard

RANKS = 4
BATCH = 4
LENGTH = 8
VOCABULARY = 64

# Names that many configurations share; each takes those that it has.
TINY = dict(
    vocab_size=VOCABULARY,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=32,
    max_position_embeddings=32,
    type_vocab_size=2,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
GROUPED = dict(TINY, num_key_value_heads=2, head_dim=4)
GPT = dict(vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=4, n_positions=32,
           bos_token_id=1, eos_token_id=2)
SEQ2SEQ = dict(
    vocab_size=VOCABULARY,
    d_model=16,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=32,
    decoder_ffn_dim=32,
    max_position_embeddings=32,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    decoder_start_token_id=2,
    forced_eos_token_id=2,
)
T5 = dict(vocab_size=VOCABULARY, d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=4,
          pad_token_id=0, eos_token_id=1, decoder_start_token_id=0)
IMAGE = dict(
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=32,
    image_size=16,
    patch_size=4,
    num_channels=3,
    num_labels=5,
)
EXPERTS = dict(GROUPED, num_local_experts=4, num_experts=4, num_experts_per_tok=2,
               moe_intermediate_size=8)
SPEECH = dict(
    vocab_size=VOCABULARY,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=32,
    conv_dim=(8, 8),
    conv_stride=(4, 2),
    conv_kernel=(8, 4),
    num_feat_extract_layers=2,
    num_conv_pos_embeddings=4,
    num_conv_pos_embedding_groups=2,
    mask_time_prob=0.0,
    mask_feature_prob=0.0,
    layerdrop=0.0,
    ctc_loss_reduction="mean",
    pad_token_id=0,
)


def tokens(*, labels=True):
    ids = torch.randint(3, VOCABULARY, (BATCH, LENGTH))
    mask = torch.ones(BATCH, LENGTH, dtype=torch.int64)
    mask[1, 6:] = 0
    mask[3, 5:] = 0
    given = dict(input_ids=ids, attention_mask=mask)
    if labels:
        given["labels"] = torch.where(mask.bool(), ids, -100)
    return given


def causal():
    return tokens()


def unmasked():
    given = tokens()
    del given["attention_mask"]
    return given


def seq2seq():
    given = tokens()
    given["labels"] = torch.randint(3, VOCABULARY, (BATCH, 6))
    return given


def classes():
    return dict(tokens(labels=False), labels=torch.randint(0, 2, (BATCH,)))


def unmasked_seq2seq():
    given = seq2seq()
    del given["attention_mask"]
    return given


def features():
    return tokens(labels=False)


def image():
    return dict(
        pixel_values=torch.randn(BATCH, 3, 16, 16, dtype=torch.float64),
        labels=torch.randint(0, 5, (BATCH,)),
    )


def image_features():
    return dict(pixel_values=torch.randn(BATCH, 3, 16, 16, dtype=torch.float64))


def image_and_text():
    given = tokens(labels=False)
    given["input_ids"][:, -1] = 2
    return dict(given, pixel_values=torch.randn(BATCH, 3, 16, 16, dtype=torch.float64))


def speech():
    return dict(
        input_values=torch.randn(BATCH, 160, dtype=torch.float64),
        labels=torch.randint(3, VOCABULARY, (BATCH, 4)),
    )


def spectrogram():
    return dict(
        input_features=torch.randn(BATCH, 8, 32, dtype=torch.float64),
        labels=torch.randint(3, VOCABULARY, (BATCH, 6)),
    )


CAUSAL = "AutoModelForCausalLM"
MASKED = "AutoModelForMaskedLM"
PAIRS = "AutoModelForSeq2SeqLM"
CLASSES = "AutoModelForSequenceClassification"
BASE = "AutoModel"
IMAGES = "AutoModelForImageClassification"
CTC = "AutoModelForCTC"

# Model type, the class that makes it, its configuration, its inputs.
MODELS = {
    "gpt2": (CAUSAL, GPT, causal),
    "gpt_neo": (CAUSAL, dict(TINY, num_layers=2, num_heads=4, window_size=4,
                             attention_types=[[["global", "local"], 1]]), causal),
    "gpt_neox": (CAUSAL, TINY, causal),
    "gpt_neox_japanese": (CAUSAL, TINY, causal),
    "gptj": (CAUSAL, dict(GPT, rotary_dim=4), causal),
    "gpt_bigcode": (CAUSAL, GPT, causal),
    "codegen": (CAUSAL, dict(GPT, rotary_dim=4), causal),
    "openai-gpt": (CAUSAL, GPT, causal),
    "opt": (CAUSAL, dict(TINY, ffn_dim=32, word_embed_proj_dim=16), causal),
    "bloom": (CAUSAL, dict(TINY, n_layer=2, n_head=4), causal),
    "falcon": (CAUSAL, TINY, causal),
    "mpt": (CAUSAL, dict(vocab_size=VOCABULARY, d_model=16, n_layers=2, n_heads=4,
                         max_seq_len=32), causal),
    "ctrl": (CAUSAL, dict(vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=4,
                          n_positions=32, dff=32), causal),
    "xglm": (CAUSAL, dict(SEQ2SEQ, num_layers=2, attention_heads=4, ffn_dim=32), unmasked),
    "biogpt": (CAUSAL, TINY, causal),
    "llama": (CAUSAL, GROUPED, causal),
    "mistral": (CAUSAL, dict(GROUPED, sliding_window=4), causal),
    "mixtral": (CAUSAL, EXPERTS, causal),
    "qwen2": (CAUSAL, GROUPED, causal),
    "qwen3": (CAUSAL, GROUPED, causal),
    "qwen2_moe": (CAUSAL, dict(EXPERTS, shared_expert_intermediate_size=16), causal),
    "qwen3_moe": (CAUSAL, EXPERTS, causal),
    "gemma": (CAUSAL, GROUPED, causal),
    "gemma2": (CAUSAL, dict(GROUPED, sliding_window=4), causal),
    "gemma3_text": (CAUSAL, dict(GROUPED, sliding_window=4), causal),
    "phi": (CAUSAL, TINY, causal),
    "phi3": (CAUSAL, dict(TINY, num_key_value_heads=2), causal),
    "phimoe": (CAUSAL, EXPERTS, causal),
    "stablelm": (CAUSAL, dict(TINY, num_key_value_heads=2), causal),
    "starcoder2": (CAUSAL, dict(TINY, num_key_value_heads=2), causal),
    "persimmon": (CAUSAL, TINY, causal),
    "olmo": (CAUSAL, dict(TINY, num_key_value_heads=2), causal),
    "olmo2": (CAUSAL, dict(TINY, num_key_value_heads=2), causal),
    "olmoe": (CAUSAL, dict(EXPERTS), causal),
    "cohere": (CAUSAL, GROUPED, causal),
    "granite": (CAUSAL, GROUPED, causal),
    "granitemoe": (CAUSAL, EXPERTS, causal),
    "glm": (CAUSAL, GROUPED, causal),
    "helium": (CAUSAL, GROUPED, causal),
    "nemotron": (CAUSAL, GROUPED, causal),
    "smollm3": (CAUSAL, GROUPED, causal),
    "ernie4_5": (CAUSAL, GROUPED, causal),
    "gpt_oss": (CAUSAL, dict(EXPERTS, sliding_window=4), causal),
    "deepseek_v3": (CAUSAL, dict(
        TINY, num_key_value_heads=4, n_routed_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=8, n_group=2, topk_group=1, kv_lora_rank=8,
        q_lora_rank=8, qk_rope_head_dim=4, qk_nope_head_dim=4, v_head_dim=4,
        first_k_dense_replace=1), causal),
    "mamba": (CAUSAL, dict(TINY, state_size=4, conv_kernel=4, time_step_rank=4), causal),
    "mamba2": (CAUSAL, dict(TINY, state_size=4, num_heads=4, head_dim=8, n_groups=2,
                            chunk_size=4), causal),
    "falcon_mamba": (CAUSAL, dict(TINY, state_size=4, conv_kernel=4, time_step_rank=4),
                     causal),
    "rwkv": (CAUSAL, dict(TINY, attention_hidden_size=16, context_length=32),
             unmasked),
    "recurrent_gemma": (CAUSAL, dict(TINY, num_key_value_heads=1, lru_width=16,
                                     attention_window_size=4, num_hidden_layers=3), causal),
    "xlnet": (CAUSAL, dict(vocab_size=VOCABULARY, d_model=16, n_layer=2, n_head=4,
                           d_inner=32), causal),
    "bert": (MASKED, TINY, causal),
    "roberta": (MASKED, TINY, causal),
    "xlm-roberta": (MASKED, TINY, causal),
    "camembert": (MASKED, TINY, causal),
    "roberta-prelayernorm": (MASKED, TINY, causal),
    "albert": (MASKED, dict(TINY, embedding_size=8), causal),
    "distilbert": (MASKED, dict(vocab_size=VOCABULARY, dim=16, n_layers=2, n_heads=4,
                                hidden_dim=32, max_position_embeddings=32), causal),
    "electra": (MASKED, dict(TINY, embedding_size=8), causal),
    "mobilebert": (MASKED, dict(TINY, embedding_size=16, true_hidden_size=16,
                                intra_bottleneck_size=16), causal),
    "mpnet": (MASKED, TINY, causal),
    "deberta": (MASKED, dict(TINY, relative_attention=True,
                             pos_att_type=["c2p", "p2c"]), causal),
    "deberta-v2": (MASKED, dict(TINY, relative_attention=True,
                                pos_att_type=["c2p", "p2c"]), causal),
    "squeezebert": (MASKED, dict(TINY, embedding_size=16, q_groups=2, k_groups=2,
                                 v_groups=2, post_attention_groups=1,
                                 intermediate_groups=2, output_groups=2), causal),
    "convbert": (MASKED, dict(TINY, embedding_size=16, conv_kernel_size=3), causal),
    "layoutlm": (MASKED, TINY, causal),
    "megatron-bert": (MASKED, TINY, causal),
    "modernbert": (MASKED, dict(TINY, local_attention=4, cls_token_id=1, sep_token_id=2),
                   causal),
    "ibert": (MASKED, TINY, causal),
    "nystromformer": (MASKED, dict(TINY, num_landmarks=4, segment_means_seq_len=8,
                                   conv_kernel_size=3), unmasked),
    "yoso": (MASKED, dict(TINY, use_expectation=True), causal),
    "fnet": (MASKED, dict(TINY, use_tpu_fourier_optimizations=False), unmasked),
    "big_bird": (MASKED, dict(TINY, attention_type="original_full"), causal),
    "xlm": (MASKED, dict(vocab_size=VOCABULARY, n_words=VOCABULARY, emb_dim=16,
                         n_layers=2, n_heads=4, max_position_embeddings=32), causal),
    "flaubert": (MASKED, dict(vocab_size=VOCABULARY, n_words=VOCABULARY, emb_dim=16,
                              n_layers=2, n_heads=4, max_position_embeddings=32,
                              layerdrop=0.0), causal),
    "funnel": (MASKED, dict(vocab_size=VOCABULARY, d_model=16, n_head=4, d_head=4,
                            d_inner=32, block_sizes=[1, 1], num_decoder_layers=1), causal),
    "esm": (MASKED, dict(TINY, mask_token_id=3, position_embedding_type="rotary"), causal),
    "t5": (PAIRS, T5, seq2seq),
    "mt5": (PAIRS, T5, seq2seq),
    "umt5": (PAIRS, T5, seq2seq),
    "longt5": (PAIRS, dict(T5, local_radius=3), seq2seq),
    "switch_transformers": (PAIRS, dict(T5, num_experts=4, expert_capacity=8,
                                        num_sparse_encoder_layers=1,
                                        num_sparse_decoder_layers=1), seq2seq),
    "bart": (PAIRS, SEQ2SEQ, seq2seq),
    "mbart": (PAIRS, SEQ2SEQ, seq2seq),
    "pegasus": (PAIRS, SEQ2SEQ, seq2seq),
    "marian": (PAIRS, SEQ2SEQ, seq2seq),
    "m2m_100": (PAIRS, SEQ2SEQ, seq2seq),
    "blenderbot": (PAIRS, SEQ2SEQ, seq2seq),
    "blenderbot-small": (PAIRS, SEQ2SEQ, seq2seq),
    "led": (PAIRS, dict(SEQ2SEQ, attention_window=4, max_encoder_position_embeddings=32,
                        max_decoder_position_embeddings=32), unmasked_seq2seq),
    "prophetnet": (PAIRS, dict(vocab_size=VOCABULARY, hidden_size=16, encoder_ffn_dim=32,
                               decoder_ffn_dim=32, num_encoder_layers=2,
                               num_decoder_layers=2, num_encoder_attention_heads=4,
                               num_decoder_attention_heads=4,
                               max_position_embeddings=32, ngram=2, num_buckets=4,
                               relative_max_distance=8), unmasked_seq2seq),
    "longformer": (MASKED, dict(TINY, attention_window=4), unmasked),
    "vit": (IMAGES, IMAGE, image),
    "deit": (BASE, IMAGE, image_features),
    "beit": (IMAGES, IMAGE, image),
    "dinov2": (IMAGES, IMAGE, image),
    "vit_msn": (IMAGES, IMAGE, image),
    "swin": (IMAGES, dict(image_size=16, patch_size=2, num_channels=3, num_labels=5,
                         embed_dim=8, depths=[1, 1], num_heads=[2, 2],
                         window_size=2), image),
    "swinv2": (IMAGES, dict(image_size=16, patch_size=2, num_channels=3, num_labels=5,
                         embed_dim=8, depths=[1, 1], num_heads=[2, 2],
                         window_size=2), image),
    "convnext": (IMAGES, dict(num_labels=5, hidden_sizes=[8, 16], depths=[1, 1],
                              num_stages=2, image_size=16), image),
    "convnextv2": (IMAGES, dict(num_labels=5, hidden_sizes=[8, 16], depths=[1, 1],
                                num_stages=2, image_size=16), image),
    "resnet": (IMAGES, dict(num_labels=5, embedding_size=8, hidden_sizes=[8, 16],
                            depths=[1, 1]), image),
    "regnet": (IMAGES, dict(num_labels=5, embedding_size=8, hidden_sizes=[8, 16],
                            depths=[1, 1], groups_width=4), image),
    "mobilenet_v1": (IMAGES, dict(num_labels=5, depth_multiplier=0.25, min_depth=8,
                                  image_size=16), image),
    "mobilenet_v2": (IMAGES, dict(num_labels=5, depth_multiplier=0.25, image_size=16),
                     image),
    "poolformer": (IMAGES, dict(num_labels=5, hidden_sizes=[8, 16], depths=[1, 1],
                                num_encoder_blocks=2, patch_sizes=[3, 3], strides=[2, 2],
                                padding=[1, 1], mlp_ratio=2.0), image),
    "segformer": (IMAGES, dict(num_labels=5, num_encoder_blocks=2, depths=[1, 1],
                               sr_ratios=[2, 1], hidden_sizes=[8, 16],
                               patch_sizes=[3, 3], strides=[2, 2],
                               num_attention_heads=[1, 2], mlp_ratios=[2, 2]), image),
    "pvt_v2": (IMAGES, dict(num_labels=5, num_encoder_blocks=2, depths=[1, 1],
                            sr_ratios=[2, 1], hidden_sizes=[8, 16], patch_sizes=[3, 3],
                            strides=[2, 2], num_attention_heads=[1, 2],
                            mlp_ratios=[2, 2]), image),
    "vit_mae": (BASE, dict(IMAGE, mask_ratio=0.0), image_features),
    "clip": (BASE, dict(
        projection_dim=8,
        text_config=dict(TINY, projection_dim=8),
        vision_config=dict(IMAGE, projection_dim=8)), image_and_text),
    "siglip": (BASE, dict(text_config=TINY, vision_config=IMAGE), image_and_text),
    "wav2vec2": (CTC, SPEECH, speech),
    "hubert": (CTC, SPEECH, speech),
    "wavlm": (CTC, dict(SPEECH, num_buckets=8, max_bucket_distance=16), speech),
    "whisper": ("AutoModelForSpeechSeq2Seq", dict(
        SEQ2SEQ, num_mel_bins=8, max_source_positions=16, max_target_positions=16),
        spectrogram),
    "speech_to_text": ("AutoModelForSpeechSeq2Seq", dict(
        SEQ2SEQ, max_source_positions=32, max_target_positions=16,
        input_feat_per_channel=8, num_conv_layers=1, conv_kernel_sizes=[3],
        conv_channels=16), lambda: dict(
            spectrogram(), input_features=torch.randn(BATCH, 32, 8, dtype=torch.float64))),
}


def takes_no_doubles(name, config):
    """Grouped products of experts, and masks of the largest float."""
    return name == "xglm" or any(
        getattr(config, key, None)
        for key in ("num_experts", "num_local_experts", "n_routed_experts")
    )


def make(name):
    """The model on one device and its inputs."""
    import transformers

    automatic, config, inputs = MODELS[name]
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(name, **copy.deepcopy(config))
    config.use_cache = False
    model = getattr(transformers, automatic).from_config(config)
    # Weights that start as zeros or ones would hide a gradient that is wrong.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    given = inputs()
    if takes_no_doubles(name, config):
        given = {
            k: v.float() if v.is_floating_point() else v for k, v in given.items()
        }
        return model.float().eval(), given
    return model.double().eval(), given


def loss_of(model, inputs):
    result = model(**inputs)
    if getattr(result, "loss", None) is not None:
        return result.loss
    values = [
        v
        for v in result.to_tuple()
        if isinstance(v, torch.Tensor) and v.requires_grad
    ]
    return sum(v.square().mean() for v in values)


def last_dim(parameter):
    return [Shard(parameter.dim() - 1) if parameter.dim() else Replicate()]


def first_dim(parameter):
    return [Shard(0) if parameter.dim() else Replicate()]


def everywhere(parameter):
    return [Replicate()]


# The placements of parameters, by module, and of the batch.
LAYOUTS = {
    "data parallel": (lambda module: everywhere, Shard(0)),
    "sharded parameters": (lambda module: first_dim, Shard(0)),
    "row-wise embeddings": (
        lambda module: first_dim if isinstance(module, nn.Embedding) else everywhere,
        Replicate(),
    ),
    "last dimensions": (lambda module: last_dim, Replicate()),
}


def distributed(model, mesh, placing):
    for module in model.modules():
        placements = placing(module)
        for tensor in list(module.parameters(recurse=False)):
            if not isinstance(tensor, ts.DTensor):
                ts.distribute_(tensor, mesh, placements(tensor))
        for name, tensor in list(module.named_buffers(recurse=False)):
            if not isinstance(tensor, ts.DTensor):
                ts.distribute_(tensor, mesh, [Replicate()])
    return model


def difference(actual, expected):
    if actual is None or expected is None:
        one = actual if expected is None else expected
        none = one is None or float(whole(one).abs().max()) == 0
        return None if none else "one is None"
    actual = whole(actual)
    scale = float(expected.abs().max()) if expected.numel() else 0.0
    error = float((actual - expected).abs().max()) if expected.numel() else 0.0
    bound = 1e-5 if expected.dtype == torch.float64 else 1e-3
    if actual.shape != expected.shape or not error <= bound * scale + 1e-4 * bound:
        return f"differs by {error:.3g} of {scale:.3g}"
    return None


def whole(tensor):
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, ts.DTensor) else tensor


def check(name, layouts=tuple(LAYOUTS)):
    """What is wrong with the model in each layout; empty where it is right."""
    plain, inputs = make(name)
    torch.manual_seed(0)
    loss = loss_of(plain, inputs)
    loss.backward()
    expected = {n: p.grad for n, p in plain.named_parameters()}
    plain.zero_grad()
    found = {}
    with ts.simulate(RANKS):
        mesh = ts.init_device_mesh("cpu", (RANKS,))
        for layout in layouts:
            placing, batch = LAYOUTS[layout]
            try:
                model = distributed(make(name)[0], mesh, placing)
                given = {
                    k: ts.distribute_tensor(v, mesh, [batch])
                    for k, v in inputs.items()
                }
                torch.manual_seed(0)
                with ts.implicit_replication():
                    result = loss_of(model, given)
                    result.backward()
                text = difference(result, loss.detach())
                text = text and f"loss {text}"
                if not isinstance(result, ts.DTensor):
                    text = "loss is no distributed tensor"
                for key, parameter in model.named_parameters():
                    wrong = difference(parameter.grad, expected[key])
                    if wrong and not text:
                        text = f"gradient of {key} {wrong}"
            except Exception as error:
                where = [
                    f"{f.filename.split('/')[-1]}:{f.lineno}"
                    for f in traceback.extract_tb(error.__traceback__)
                ][-3:]
                lines = str(error).strip().splitlines() or [type(error).__name__]
                text = f"{type(error).__name__}: {lines[0][:200]} ({' '.join(where)})"
            found[layout] = text or ""
    return found


def main():
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    names = sys.argv[1:] or list(MODELS)
    right = 0
    for name in names:
        start = time.time()
        try:
            found = check(name)
        except Exception as error:
            lines = str(error).strip().splitlines() or ["?"]
            print(f"{name}: cannot be made: {type(error).__name__}: {lines[0][:200]}")
            continue
        bad = {layout: text for layout, text in found.items() if text}
        right += not bad
        print(f"{name}: {'right' if not bad else 'FAILS'} {time.time() - start:.1f} s")
        for layout, text in bad.items():
            print(f"    {layout}: {text}")
        sys.stdout.flush()
    print(f"{right} of {len(names)} right")


if __name__ == "__main__":
    main()
