/* Private to program.c, steps.c and stamp.c: the guard program and the state of one run. */
#ifndef BRAZE_PROGRAM_H
#define BRAZE_PROGRAM_H
#include "braze.h"

/* Instructions. Loads put a value into register dst, steps take it from register src; checks look at register src.
   The numbers are those of capture/program.py, which takes them from the module's OPS table. */
#define BRAZE_OPS(X)                                                                                               \
    X(LOCAL) X(FUNCTION) X(CELL) X(GLOBALS) X(BUILTINS) X(CONST)                                                   \
    X(ATTR) X(INSTANCE_ATTR) X(ITEM) X(DICT_KEY) X(TYPE) X(TYPE_ATTR) X(CELL_CONTENTS) X(TENSOR_INT) X(CALL)       \
    X(TYPE_IS) X(IS) X(IS_WEAK) X(NOT_NONE) X(EQUALS) X(TRUTH) X(RANGE) X(TENSOR) X(LENGTH) X(DICT_KEYS)           \
    X(DICT_HAS) X(SET_EQUALS) X(LACKS) X(NO_ATTR) X(CODE_IS) X(SAME) X(DISTINCT) X(RELATION) X(STATE) X(CUSTOM)
enum {
#define X(name) OP_##name,
    BRAZE_OPS(X)
#undef X
    OP_COUNT
};

typedef struct {
    uint8_t op;
    uint8_t level;     /* how a load is kept by the fast path: 0 by memory words, 1 loaded and compared, 2 loaded afresh */
    uint8_t fails;     /* times that the fast path missed because of it */
    int32_t src, dst;
    PyObject *obj;     /* strong; the name, key, constant, weak reference or function */
    Py_hash_t hash;    /* of obj where it is looked up in dicts */
    int64_t n, m;      /* slot, index, length, bounds; m of a load: how many attributes are read of the value */
    TensorSpec *spec;
    int64_t *list;     /* DISTINCT: registers; RELATION: a postfix program */
} Ins;

/* How a load found its value, for the fast path. */
enum {
    VIA_NOTHING,       /* not reproducible by comparing memory */
    VIA_ROOT,          /* a root of the frame */
    VIA_FIXED,         /* a constant of the program */
    VIA_DICT,          /* an entry of dict (of object's instance dict at dict_slot, if given); also "absent" */
    VIA_FIELD,         /* *field */
    VIA_LIST,          /* an item of a list, at field */
    VIA_TUPLE,         /* an item of a tuple, at field */
    VIA_TYPE_OF,       /* the type of object */
    VIA_TYPE_ATTR,     /* an attribute found by the MRO of type; also "absent" */
};
typedef struct {
    int kind;
    PyObject *object;       /* where the step started */
    PyObject *dict;
    PyObject **dict_slot;
    PyObject **field;
    const uint64_t *header; /* 3.13: the header of the inline values that field is in, or the keys' usage */
    const uint64_t *usage;
    PyTypeObject *type;     /* its version tag counts too, if given */
} Via;

typedef struct { const uint64_t *at; uint64_t value; } Word;
typedef struct { int32_t ins; bool version; } WordInfo;
enum { PART_WORDS, PART_RUN, PART_SAME, PART_GRAD }; /* GRAD: requires_grad of a pinned tensor */
typedef struct { int32_t kind, a, b; } Part; /* words [a, b), or instruction a */

typedef struct {
    bool valid;
    Part *parts;
    Word *words;
    WordInfo *infos;
    Py_ssize_t nparts, nwords, parts_room, words_room;
    PyObject *holds;              /* list of immutable values that words point at */
    uint8_t *pins;                /* by register: 0 loaded afresh, 1 same address, 2 certainly the same object */
    PyObject **regs;
} Stamp;

enum { HOT_DICTS = 64 };
typedef struct {
    PyObject_HEAD
    Py_ssize_t n, ncustom;        /* the last ncustom instructions are CUSTOM */
    Ins *ins;
    int32_t nregs;
    Py_ssize_t nreads;
    int32_t *reads;
    bool careful;                 /* reading runs Python code: own every register, stamp nothing */
    Stamp stamp, spare;           /* a full walk writes the spare; when it passes they are exchanged */
    PyObject *hot[HOT_DICTS];     /* addresses (not references) of dicts that change often */
    uint8_t hot_count[HOT_DICTS];
    int nhot, misses_in_a_row, pause; /* pause: full walks to go before a new stamp is tried */
    int64_t count_fast, count_full, count_stamps, count_careful;
    int32_t failed;               /* the instruction that failed last, or -1 */
    int32_t careful_at;           /* the instruction that made the program careful, or -1 */
    int32_t missed_at;            /* the instruction at which the fast path missed last, or -1 */
} Program;

typedef struct {
    Program *p;
    PyFunctionObject *function;
    PyObject *const *args;
    PyObject **regs;
    bool careful;                 /* own every register */
    bool fast;                    /* registers with a pin hold values of the stamp */
    Via via;
    PyObject **owned;
    Py_ssize_t nowned, owned_room;
    PyObject *owned_first[32];
} Walk;

/* 1 passed; 0 failed; -1 an exception; NEEDS_CARE: would run Python code, start again in careful mode. */
enum { NEEDS_CARE = -2 };
int braze_step(Walk *w, const Ins *ins);
int braze_own(Walk *w, PyObject *value); /* steal a reference until the end of the walk */

static inline bool braze_is_load(int op) { return op <= OP_CALL; }
static inline bool braze_is_root(int op) { return op <= OP_CONST; }

static inline uint64_t *braze_dict_version(PyObject *dict) { return &((PyDictObject *)dict)->ma_version_tag; }

/* Recording of a stamp during a full walk. */
typedef struct Recorder Recorder;
Recorder *braze_record_begin(Walk *w);
int braze_record(Recorder *r, Walk *w, int32_t index); /* after instruction index passed; 0, or -1: give up */
void braze_record_end(Recorder *r, Walk *w, bool keep);
/* Run the fast path: 1 passed, 0 failed for good, -1 exception, NEEDS_CARE, or TRY_FULL. */
enum { TRY_FULL = -3 };
int braze_stamp_run(Walk *w, int32_t *missed_ins, int32_t *missed_word);
void braze_stamp_missed(Program *p, int32_t ins, int32_t word);
void braze_stamp_free(Stamp *s);
#endif
