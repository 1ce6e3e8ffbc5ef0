/* SPDX-License-Identifier: Apache-2.0 */
/* clients/zctl/deepspeed_keys.c: keys of DeepSpeed's that become nothing in a run file, and why; and the
 * list of all its keys, for the nearest one. Constant data. */
#include <stdlib.h>
#include <string.h>
#include "clients/zctl/deepspeed_int.h"
#include "core/units.h"

/* A key, or with a final dot everything below it. */
struct rule {
    const char *path;
    const char *usual;        /* JSON of the value that asks for nothing; NULL: none does, "": all do */
    enum zt_ds_outcome other; /* with another value */
    const char *text;
};

#define SAME ZT_DS_SAME
#define WARN ZT_DS_WARNED
#define NO ZT_DS_REFUSED
#define ZERO "zero_optimization."
#define MODULES "a matter of PyTorch's modules"
#define CUTS "how a tensor is cut follows from its place in the model"
#define NO_SAVES "there are no checkpoints in this version"

static const struct rule rules[] = {
    {"wall_clock_breakdown", "", SAME, "times are measured in every step: zctl metrics"},
    {"memory_breakdown", "", SAME, "memory is measured in every step: zctl memory"},
    {"timers.", "", SAME, "times are measured in every step: zctl metrics"},
    {"dump_state", "", SAME, "zctl validate --show prints what a run file amounts to"},
    {"log_level", "", SAME, "of that program's log"},
    {"zero_allow_untested_optimizer", "", SAME, "there is one optimizer"},
    {"zero_force_ds_cpu_optimizer", "", SAME, "read with offload only"},
    {"aio.", "", SAME, "read with offload to NVMe only"},
    {"vocabulary_size", "", SAME, "the model says it: model.vocab_size"},
    {"prescale_gradients", "false", WARN, "gradients are plain sums: the loss is scaled by the tokens of the window"},
    {"gradient_predivide_factor", "1.0", WARN, "gradients are plain sums: the loss is scaled by the tokens of the window"},
    {"gradient_allreduce_op", "\"avg\"", WARN, "gradients are plain sums: the loss is scaled by the tokens of the window"},
    {"sparse_gradients", "false", NO, "gradients are dense"},
    {"disable_allgather", "false", WARN, "updated parameters are sent by all-gather"},
    {"seq_parallel_comm_data_type", "", SAME, "activations travel in the compute type"},
    {"sequence_parallel_size", "1", NO, "heads and sequence do not change places (Ulysses); parallelism.sequence_parallel is Megatron's"},
    {"tensor_parallel.dtype", "", SAME, "the recipe says it: precision.recipe"},
    {"tensor_parallel.tp_overlap_comm", "false", WARN, "a layer waits for the sums of its tensor group"},
    {"tensor_parallel.tp.tp_grain_size", "", SAME, "parts are equal: the degree divides heads and ffn_dim"},
    {"tensor_parallel.preset_model", "", SAME, CUTS},
    {"tensor_parallel.partition_config", "null", WARN, CUTS},
    {"tensor_parallel.partition_config.", NULL, WARN, CUTS},
    {"tensor_parallel.injection_policy_tuple", "null", WARN, CUTS},
    {"tensor_parallel.keep_module_on_host", "false", WARN, "each rank draws its own part of the weights"},
    {"tensor_parallel.replace_with_kernel_inject", "false", WARN, "a matter of that program's kernels"},
    {"graph_harvesting", "false", WARN, "there are no captured graphs"},
    {"managed_gradient_accumulation", "", SAME, "accumulation is managed here"},
    {"use_data_before_expert_parallelism", "false", NO, "there are no experts"},
    {"data_types.param_dtype", "null", WARN, "the recipe says it: precision.recipe"},
    {"data_types.buffer_dtype", "null", SAME, "models here have no buffers"},
    {"optimizer.legacy_fusion", "", SAME, "a matter of that program's kernels"},
    {"optimizer.params.fused", "", SAME, "a matter of PyTorch's kernels"},
    {"optimizer.params.foreach", "", SAME, "a matter of PyTorch's kernels"},
    {"optimizer.params.bias_correction", "true", NO, "moments are always corrected"},
    {"optimizer.params.amsgrad", "false", NO, "there is no AMSGrad"},
    {"optimizer.params.maximize", "false", NO, "the loss is minimised"},
    {"scheduler.params.last_batch_iteration", "-1", WARN, "a schedule begins at step 1"},
    {"fp16.auto_cast", "false", WARN, "inputs are token numbers; nothing of them is cast"},
    {"fp16.fused_mode", "", SAME, "a matter of that program's kernels"},
    {"bf16.immediate_grad_update", "", SAME, "a matter of that program's gradient buffers"},
    {"bf16.check_grad_overflow", "", SAME, "numbers that are not finite are always looked for: precision.nonfinite"},
    {"checkpoint.", "", SAME, NO_SAVES},
    {"activation_checkpointing.", "false", WARN,
     "says how, not whether: the model's code recomputes there; here activation_checkpoint.mode does"},

    {ZERO "contiguous_gradients", "true", WARN, "a unit's gradients always lie in one buffer"},
    {ZERO "reduce_scatter", "true", WARN, "gradients that are cut are always reduce-scattered"},
    {ZERO "allgather_partitions", "true", WARN, "updated parameters are sent by all-gather"},
    {ZERO "use_multi_rank_bucket_allreduce", "", SAME, "one collective per flat group"},
    {ZERO "load_from_fp32_weights", "", SAME, NO_SAVES},
    {ZERO "elastic_checkpoint", "", SAME, NO_SAVES},
    {ZERO "pipeline_loading_checkpoint", "", SAME, NO_SAVES},
    {ZERO "stage3_gather_16bit_weights_on_model_save", "false", WARN, NO_SAVES},
    {ZERO "stage3_gather_fp16_weights_on_model_save", "false", WARN, NO_SAVES},
    {ZERO "sub_group_size", "1e9", WARN, "the update needs no temporary copy that would have to be bounded"},
    {ZERO "stage3_model_persistence_threshold", NULL, WARN,
     "what stays whole has no cap on its sum: persistence_threshold alone decides"},
    {ZERO "stage3_max_live_parameters", "1e9", WARN,
     "what is whole at once follows from prefetch and reshard_after_forward: 1 + prefetch units, and the root in fsdp"},
    {ZERO "stage3_max_reuse_distance", "1e9", WARN,
     "a unit goes after its use unless the next prefetch would ask for it again"},
    {ZERO "stage3_module_granularity_threshold", "0", WARN, "parallelism.wrap says what is gathered at once"},
    {ZERO "stage3_use_all_reduce_for_fetch_params", "false", WARN, "parameters are gathered by all-gather"},
    {ZERO "stage3_allgather_sequential", "false", WARN, "a unit is one buffer and needs no copies"},
    {ZERO "stage3_partition_stream_chunk_size", "0", WARN, "each rank draws its own slice of the weights"},
    {ZERO "ignore_unused_parameters", "", SAME, "every tensor of the model is used"},
    {ZERO "legacy_stage1", "false", NO, "the old stage 1 is not done"},
    {ZERO "round_robin_gradients", "false", WARN, "helps offload only"},
    {ZERO "cpu_offload_use_pin_memory", "", SAME, "read with offload only"},
    {ZERO "zero_quantized_weights", "false", NO, "quantised gathers (ZeRO++ qwZ) are not done"},
    {ZERO "zero_quantized_nontrainable_weights", "false", NO, "quantised weights are not done"},
    {ZERO "zero_quantized_gradients", "false", NO, "quantised reductions (ZeRO++ qgZ) are not done"},
    {ZERO "zeropp_loco_param", "null", NO, "quantised reductions are not done"},
    {ZERO "zeropp_loco_param.", NULL, NO, "quantised reductions are not done"},
    {ZERO "mics_hierarchical_params_gather", "false", WARN, "a gather is one collective in the shard group"},
    {ZERO "zenflow.", NULL, NO, "asynchronous offload is not in this version"},
    {ZERO "memory_efficient_linear", "", SAME, MODULES},
    {ZERO "override_module_apply", "", SAME, MODULES},
    {ZERO "log_trace_cache_warnings", "", SAME, "the order of units is fixed: there is no trace to be wrong"},
    {ZERO "enable_sanity_checks", "", SAME, "collectives are always compared between ranks"},
    {ZERO "save_muon_momentum_buffer_in_memory", "", SAME, "there is no Muon"},
    {ZERO "leaf_module.", "", SAME, MODULES "; parallelism.wrap says what is gathered at once"},
};

/* Mappings that are on or off as a whole. */
static const struct rule sections[] = {
    {"tensorboard", NULL, WARN, "metrics are kept by the coordinator: zctl metrics -o jsonl"},
    {"wandb", NULL, WARN, "metrics are kept by the coordinator: zctl metrics -o jsonl"},
    {"comet", NULL, WARN, "metrics are kept by the coordinator: zctl metrics -o jsonl"},
    {"csv_monitor", NULL, WARN, "metrics are kept by the coordinator: zctl metrics -o csv"},
    {"flops_profiler", NULL, WARN, "there is no profiler of operations in this version"},
    {"comms_logger", NULL, WARN, "collectives are always logged: zctl metrics --rank all, zctl explain RUN --step N"},
    {"autotuning", NULL, WARN, "there is no tuner in this version"},
    {"nebula", NULL, WARN, NO_SAVES},
    {"datastates", NULL, WARN, NO_SAVES},
    {"datastates_ckpt", NULL, WARN, NO_SAVES},
    {"compile", NULL, WARN, "nothing is compiled: operators are written by hand"},
    {"eigenvalue", NULL, NO, "eigenvalues are not computed"},
    {"amp", NULL, NO, "Apex AMP is not done; recipe autocast (fp32 stored, 16 bits in the kernels) is near"},
    {"elasticity", NULL, NO, "elastic batches are not in this version; give the batch sizes themselves"},
    {"curriculum_learning", NULL, NO, "sequence lengths do not grow"},
    {"data_efficiency", NULL, NO, "neither curricula nor random token dropping are done"},
    {"progressive_layer_drop", NULL, NO, "layers are not dropped"},
    {"compression_training", NULL, NO, "models are not compressed"},
    {"quantize_training", NULL, NO, "models are not quantised"},
    {"weight_quantization", NULL, NO, "models are not quantised"},
    {"sparse_attention", NULL, NO, "attention is dense and causal"},
    {"hybrid_engine", NULL, NO, "there is no inference"},
    {"expert_parallel", NULL, NO, "there are no experts"},
    {"pipeline", NULL, NO, "there is no pipeline parallelism"},
};

/* Keys with rules of their own (deepspeed_train.c), for the nearest one. */
static const char *const others[] = {
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping",
    "steps_per_print", "dataloader_drop_last", "communication_data_type", "fp32_allreduce", "optimizer.type",
    "optimizer.params.lr", "optimizer.params.betas", "optimizer.params.eps", "optimizer.params.weight_decay",
    "optimizer.params.torch_adam", "optimizer.params.adam_w_mode", "optimizer.params.max_grad_norm",
    "scheduler.type", "scheduler.params.warmup_min_lr", "scheduler.params.warmup_max_lr",
    "scheduler.params.warmup_num_steps", "scheduler.params.warmup_type", "scheduler.params.total_num_steps",
    "scheduler.params.warmup_min_ratio", "scheduler.params.cos_min_ratio", "fp16.enabled", "fp16.loss_scale",
    "fp16.initial_scale_power", "fp16.loss_scale_window", "fp16.hysteresis", "fp16.min_loss_scale",
    "fp16.consecutive_hysteresis", "fp16.fp16_master_weights_and_grads", "bf16.enabled",
    "bf16.bf16_master_weights_and_grads", "bf16.bf16_optimizer_states", "torch_autocast.enabled",
    "torch_autocast.dtype", "torch_autocast.lower_precision_safe_modules", "data_types.grad_accum_dtype",
    "tensor_parallel.autotp_size", "tensor_parallel.tp.tp_size", ZERO "stage", ZERO "overlap_comm", ZERO "reduce_bucket_size", ZERO "allgather_bucket_size",
    ZERO "stage3_prefetch_bucket_size", ZERO "stage3_param_persistence_threshold", ZERO "zero_hpz_partition_size",
    ZERO "mics_shard_size", ZERO "offload_param", ZERO "offload_optimizer", ZERO "cpu_offload",
    ZERO "cpu_offload_param",
};
#define N(a) ((int)(sizeof(a) / sizeof(a)[0]))

/* Whether the value is the JSON text, as numbers where both are. */
static bool is_value(const json_t *v, const char *text) {
    json_t *want = json_loads(text, JSON_DECODE_ANY, NULL);
    bool same = want && (json_is_number(v) && json_is_number(want) ? json_number_value(v) == json_number_value(want)
                                                                   : json_equal(v, want) == 1);
    json_decref(want);
    return same;
}

static bool under(const char *path, const char *section) {
    size_t n = strlen(section);
    return strncmp(path, section, n) == 0 && (path[n] == '.' || path[n] == '\0');
}

bool ds_enabled(struct ds *d, const char *section) {
    bool any = false, switched = false, on = false;
    for (int i = 0; i < d->n; i++) {
        const char *path = d->leaf[i].path, *dot = strrchr(path, '.');
        if (!under(path, section))
            continue;
        any = true;
        if (dot && strcmp(dot, ".enabled") == 0) {
            switched = true;
            on = on || json_is_true(d->leaf[i].value);
        }
    }
    return switched ? on : any;
}

static void apply_rule(struct ds *d, const struct rule *r) {
    size_t n = strlen(r->path);
    for (int i = 0; i < d->n; i++) {
        struct leaf *l = &d->leaf[i];
        bool mine = r->path[n - 1] == '.' ? strncmp(l->path, r->path, n - 1) == 0 && (l->path[n - 1] == '.' || !l->path[n - 1])
                                          : strcmp(l->path, r->path) == 0;
        if (!mine || l->told)
            continue;
        bool usual = r->usual && (r->usual[0] == '\0' || is_value(l->value, r->usual));
        ds_say(d, l, usual ? ZT_DS_SAME : r->other, "%s", r->text);
    }
}

static void apply_section(struct ds *d, const struct rule *r) {
    bool on = ds_enabled(d, r->path);
    for (int i = 0; i < d->n; i++)
        if (under(d->leaf[i].path, r->path))
            ds_say(d, &d->leaf[i], on ? r->other : ZT_DS_SAME, "%s", on ? r->text : "switched off");
}

/* Whether known keys lie inside this one, so that its value is a mapping: zero_optimization. */
static bool holds_keys(const char *path) {
    size_t n = strlen(path);
    for (int i = 0; i < N(others); i++)
        if (under(others[i], path) && others[i][n] == '.')
            return true;
    for (int i = 0; i < N(rules); i++)
        if (under(rules[i].path, path) && rules[i].path[n] == '.')
            return true;
    return false;
}

void ds_rest(struct ds *d) {
    for (int i = 0; i < N(sections); i++)
        apply_section(d, &sections[i]);
    for (int i = 0; i < N(rules); i++)
        apply_rule(d, &rules[i]);
    for (int i = 0; i < d->n; i++) {
        struct leaf *l = &d->leaf[i];
        if (!holds_keys(l->path))
            continue;
        if (json_is_object(l->value) || json_is_null(l->value))
            ds_say(d, l, ZT_DS_SAME, "empty: the defaults");
        else
            ds_say(d, l, ZT_DS_REFUSED, "expected a mapping: {...}");
    }
}

const char *ds_nearest(const char *path) {
    const char *names[N(rules) + N(sections) + N(others)], *leaf = strrchr(path, '.') ? strrchr(path, '.') + 1 : path;
    int n = 0;
    for (int i = 0; i < N(others); i++)
        names[n++] = others[i];
    for (int i = 0; i < N(rules); i++)
        names[n++] = rules[i].path;
    for (int i = 0; i < N(sections); i++)
        names[n++] = sections[i].path;
    for (int i = 0; i < n; i++) { /* the right word in the wrong place */
        const char *dot = strrchr(names[i], '.');
        if (dot && dot[1] && strcmp(dot + 1, leaf) == 0)
            return names[i];
    }
    return zt_nearest(path, names, n);
}
