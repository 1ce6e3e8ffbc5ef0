/* SPDX-License-Identifier: Apache-2.0 */
/* `zctl import`, `export` and `sample` as they are typed: what they print, what they make, exit codes. */
#include <criterion/criterion.h>
#include <jansson.h>
#include <sys/wait.h>

#include "tests/engine/ckpt_made.h"
#include "tests/golden/golden.h"

static char root[128];
static void begin(void) { new_folder(root); }
static void finish(void) { remove_folder(root); }

/* Runs zctl in the test's folder; standard output and error together, malloc'ed. */
static char *zctl(int want, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static char *zctl(int want, const char *fmt, ...) {
    char args[1024], command[2048];
    size_t n = 0;
    char *text = NULL;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(args, sizeof args, fmt, ap);
    va_end(ap);
    snprintf(command, sizeof command, "exec 2>&1; cd %s && XDG_STATE_HOME=%s %s %s", root, root, ZCTL, args);
    FILE *p = popen(command, "r"), *out = open_memstream(&text, &n);
    for (int c; (c = fgetc(p)) != EOF;) fputc(c, out);
    fclose(out);
    int status = pclose(p);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == want, "zctl %s: %d\n%s", args, WEXITSTATUS(status), text);
    return text;
}

static void expect_in(char *text, const char *what) {
    cr_expect(strstr(text, what), "\"%s\" is not in:\n%s", what, text);
    free(text);
}

/* A run file made of what import printed is valid, and begins from the folder. */
Test(hf, import_and_export, .init = begin, .fini = finish) {
    char *section = zctl(0, "import %s --out made 2>/dev/null", golden_folder("llama"));
    char yaml[2048];
    snprintf(yaml, sizeof yaml, "init_from: \"%s/made\"\n", root);
    cr_expect(strncmp(section, "model:\n  family: llama\n", 23) == 0 && strstr(section, yaml), "%s", section);
    cr_expect(strstr(section, "rope_scaling: {type: llama3, factor: 8.0"), "%s", section);
    free(section);
    expect_in(zctl(5, "import %s --out made", golden_folder("llama")), "is there already");
    expect_in(zctl(0, "export ./made hf/"), "1 file, from");
    expect_in(zctl(5, "export ./made hf"), "is there already");
    expect_in(zctl(0, "export ./made/step-00000000 wide --dtype fp32 --max-shard-gib 0.00001 -o json"), "\"dtype\": \"fp32\"");
    expect_in(zctl(2, "export ./made no --dtype fp64"), "expected bf16 or fp32");
    expect_in(zctl(2, "export ./made no --merge-lora"), "no adapters");
    expect_in(zctl(2, "export ./hf no"), "already");
    expect_in(zctl(3, "import ./nothing --out x"), "config.json");
    expect_in(zctl(3, "export ./nothing x"), "nothing");
    /* bf16 came, bf16 went: the default */
    struct raw_file raw;
    raw_open(path_in(path_in(root, "hf"), "model.safetensors"), &raw);
    cr_expect_str_eq(json_string_value(json_object_get(raw_need(&raw, "model.norm.weight"), "dtype")), "BF16");
    raw_close(&raw);
    struct zt_hf *h = hf_open(path_in(root, "wide"));
    cr_expect_eq(zt_hf_type(h, 0), ZT_F32);
    zt_hf_close(h);
    /* without --out: a name of its own, here */
    expect_in(zctl(0, "import %s", golden_folder("qwen2")), "the files count");
    struct stat st;
    cr_expect_eq(stat(path_in(root, "qwen2-ztrain/step-00000000/manifest.json"), &st), 0);
}

/* The greedy text of PyTorch, as ids; of the folder itself, of what was imported, of what was exported again. */
Test(hf, sample_of_ids, .init = begin, .fini = finish) {
    struct golden g;
    struct golden_array prompt, greedy;
    char ids[256] = "", want[512] = "";
    int32_t id;
    cr_assert_eq(golden_open(golden_folder("expected.bin"), &g), 0);
    cr_assert(golden_find(&g, "qwen3:prompt", &prompt) == 0 && golden_find(&g, "qwen3:greedy", &greedy) == 0);
    for (int64_t i = 0; i < prompt.numel; i++) {
        memcpy(&id, prompt.data + 4 * i, 4);
        snprintf(ids + strlen(ids), sizeof ids - strlen(ids), "%s%d", i ? " " : "", id);
    }
    snprintf(want, sizeof want, "%s", ids);
    for (int64_t i = 0; i < greedy.numel; i++) {
        memcpy(&id, greedy.data + 4 * i, 4);
        snprintf(want + strlen(want), sizeof want - strlen(want), " %d", id);
    }
    golden_close(&g);
    free(zctl(0, "import %s --out made", golden_folder("qwen3")));
    free(zctl(0, "export ./made hf"));
    const char *const from[] = {golden_folder("qwen3"), "./made", "./hf"};
    for (int i = 0; i < 3; i++)
        expect_in(zctl(0, "sample %s --prompt '%s' --tokens 12 --threads %d", from[i], ids, 1 + i % 2), want);
    expect_in(zctl(0, "sample ./made --prompt '%s' --tokens 100", ids), "stopped at the model's seq_len_max of 24 tokens");
    expect_in(zctl(2, "sample ./made --prompt 'words'"), "expected token ids from 0 to 40");
    expect_in(zctl(2, "sample ./made --prompt '41'"), "expected token ids");
    expect_in(zctl(2, "sample ./made"), "--prompt");
    expect_in(zctl(2, "sample ./made --prompt 1 --top-k 2"), "--temperature");
    expect_in(zctl(7, "sample ./made --prompt 1 --memory-gib 0.001"), "--memory-gib");
    expect_in(zctl(2, "sample ./made --prompt '0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3'"), "no room");
    char *a = zctl(0, "sample ./made --prompt 1 --temperature 1 --seed 4 -o jsonl"),
         *b = zctl(0, "sample ./made --prompt 1 --temperature 1 --seed 4 -o jsonl --threads 2"),
         *c = zctl(0, "sample ./made --prompt 1 --temperature 1 --seed 5 -o jsonl");
    cr_expect_str_eq(a, b);
    cr_expect_str_neq(a, c);
    free(a);
    free(b);
    free(c);
}

/* A run of bytes: the text is the prompt's bytes and more bytes. */
Test(hf, sample_of_bytes, .init = begin, .fini = finish) {
    const struct made m = {"model: {family: gpt2, layers: 1, heads: 2, dim: 16, vocab_size: 256, seq_len_max: 32}\n"
                           "dataset: {path: x}\ntraining: {steps: 10, seq_len: 16, local_batch_size: 4}\n", MADE_FLAT, 4, false, false};
    made_write(&m, root);
    char *text = zctl(0, "sample ./step-00000003 --prompt 'Hello' --tokens 10 -o json");
    json_t *j = json_loads(text, 0, NULL);
    cr_assert_not_null(j, "%s", text);
    cr_expect_eq(json_array_size(json_object_get(j, "tokens")), 10);
    cr_expect_str_eq(json_string_value(json_object_get(j, "stopped")), "tokens");
    json_decref(j);
    free(text);
    text = zctl(0, "sample ./ --prompt 'Hello' --tokens 20 2>notes"); /* the newest of the folder */
    cr_expect(strncmp(text, "Hello", 5) == 0, "%s", text);
    free(text);
    expect_in(read_whole(path_in(root, "notes")), "past training.seq_len 16 were never trained");
}
