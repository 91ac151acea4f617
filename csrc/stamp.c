/* The fast path of a guard program.

   After a full walk has passed, most of what it read can be proved unchanged by comparing memory words: that an object's
   dict is still the same dict with the same version, that a tensor's metadata block holds the same numbers, that a type has
   the same version tag. A stamp is such a list of (address, expected word), in the order of the walk, so that each
   address is known to be alive by what was compared before it; the roots, and whatever changes often, are loaded again
   by their instructions in between.

   A register is pinned "certain" when it must hold the very object of the walk (dict versions are never reused, so an
   unchanged dict still owns its values), or "maybe" when only its address was compared: the object may have died and
   another been made in its place. A maybe's type is compared before its layout is relied on, and immutable values are
   kept alive by the stamp. A word that fails sends the program to the full walk; when that passes, a new stamp is made. */
#include "program.h"

#include "internal/pycore_dict.h"

enum { FRESH, MAYBE, CERTAIN };
enum { MANY_ATTRIBUTES = 6 };
enum { AHEAD = 24 }; /* words that are prefetched ahead: their addresses are known, but scattered */

struct Recorder {
    const Program *p;
    Stamp *s;
    int32_t ins;
    Py_ssize_t table_size; /* a hash set of the addresses that were recorded */
    const uint64_t **table;
};

void braze_stamp_free(Stamp *s) {
    Py_CLEAR(s->holds);
    PyMem_Free(s->parts);
    PyMem_Free(s->words);
    PyMem_Free(s->infos);
    PyMem_Free(s->pins);
    PyMem_Free(s->regs);
}

/* ---- recording ---- */

static int grow(void **items, Py_ssize_t *room, Py_ssize_t n, size_t size) {
    if (n < *room) return 0;
    Py_ssize_t wanted = *room ? 2 * *room : 64;
    void *grown = PyMem_Realloc(*items, wanted * size);
    if (grown == NULL) return -1;
    *items = grown;
    *room = wanted;
    return 0;
}

static int add_part(Recorder *r, int kind, int32_t a, int32_t b) {
    Stamp *s = r->s;
    if (grow((void **)&s->parts, &s->parts_room, s->nparts, sizeof *s->parts) < 0) return -1;
    s->parts[s->nparts++] = (Part){kind, a, b};
    return 0;
}

/* Whether an address is new; remembers it. Once the table is crowded everything counts as new. */
static bool first_time(Recorder *r, const uint64_t *at) {
    size_t mask = (size_t)r->table_size - 1, i = ((uintptr_t)at >> 3) * 0x9E3779B97F4A7C15ULL >> 20 & mask;
    for (int tries = 0; tries < 16; tries++, i = (i + 1) & mask) {
        if (r->table[i] == at) return false;
        if (r->table[i] == NULL) {
            r->table[i] = at;
            return true;
        }
    }
    return true;
}

static int add_word(Recorder *r, const void *address, bool version) {
    Stamp *s = r->s;
    const uint64_t *at = address;
    if (!first_time(r, at)) return 0;
    Py_ssize_t room = s->words_room;
    if (grow((void **)&s->words, &room, s->nwords + AHEAD, sizeof *s->words) < 0) return -1; /* room to look ahead */
    if (room != s->words_room) {
        WordInfo *infos = PyMem_Realloc(s->infos, room * sizeof *infos);
        if (infos == NULL) return -1;
        s->infos = infos;
        s->words_room = room;
    }
    s->words[s->nwords] = (Word){at, *at};
    s->infos[s->nwords++] = (WordInfo){r->ins, version};
    Part *last = s->nparts ? &s->parts[s->nparts - 1] : NULL;
    if (last != NULL && last->kind == PART_WORDS) {
        last->b++;
        return 0;
    }
    return add_part(r, PART_WORDS, (int32_t)s->nwords - 1, (int32_t)s->nwords);
}

static int hold(Recorder *r, PyObject *value) {
    if (r->s->holds == NULL) r->s->holds = PyList_New(0);
    return r->s->holds == NULL ? -1 : PyList_Append(r->s->holds, value);
}

static bool immutable(PyObject *o) {
    return PyLong_CheckExact(o) || PyUnicode_CheckExact(o) || PyFloat_CheckExact(o) || PyBytes_CheckExact(o) ||
           PyComplex_CheckExact(o) || PyType_Check(o);
}

static inline bool singleton(PyObject *o) { return o == Py_None || PyBool_Check(o) || o == Py_Ellipsis; }

/* Whether a dict's version is not to be relied on: it changes often, or (3.13) attributes that are stored in the values
   inside an object do not count in the version of its dict. */
static bool is_hot(const Program *p, PyObject *dict) {
#if PY_VERSION_HEX >= 0x030D0000
    const PyDictValues *values = ((PyDictObject *)dict)->ma_values;
    if (values != NULL && values->embedded) return true;
#endif
    for (int i = 0; i < p->nhot; i++)
        if (p->hot[i] == dict) return p->hot_count[i] >= 2;
    return false;
}

/* The type of an object that is only known by its address. */
static int add_type(Recorder *r, PyObject *o, int pin) { return pin == CERTAIN ? 0 : add_word(r, &o->ob_type, false); }

/* The version tag of a type. -2: it has none, so it cannot be pinned. */
static int add_type_version(Recorder *r, PyTypeObject *type) {
    return type->tp_version_tag == 0 ? -2 : add_word(r, &type->tp_version_tag, false);
}

/* The words that prove that a dict (or an instance's dict) is as it was. */
static int add_dict(Recorder *r, const Via *via, int pin) {
    if (add_type(r, via->object, pin) < 0) return -1;
    if (via->dict_slot != NULL && add_word(r, via->dict_slot, false) < 0) return -1;
    return add_word(r, braze_dict_version(via->dict), true);
}

/* What a load or an absence rests on. Returns the pin of the value, -1 for no memory, -2 for "load it afresh". */
static int add_via(Recorder *r, const Via *via, int pin) {
    if (via->type != NULL) {
        if (via->object != (PyObject *)via->type && add_word(r, &via->object->ob_type, false) < 0) return -1;
        int tag = add_type_version(r, via->type);
        if (tag < 0) return tag;
    }
    switch (via->kind) {
    case VIA_DICT: return is_hot(r->p, via->dict) ? -2 : add_dict(r, via, pin) < 0 ? -1 : CERTAIN;
    case VIA_FIELD:
        if (add_type(r, via->object, pin) < 0) return -1;
        if (via->header != NULL && add_word(r, via->header, false) < 0) return -1;
        if (via->usage != NULL && add_word(r, via->usage, false) < 0) return -1;
        return via->field != NULL && add_word(r, via->field, false) < 0 ? -1 : MAYBE;
    case VIA_LIST: {
        PyListObject *list = (PyListObject *)via->object;
        if (add_type(r, via->object, pin) < 0 || add_word(r, &list->ob_item, false) < 0) return -1;
        return add_word(r, &list->ob_base.ob_size, false) < 0 || add_word(r, via->field, false) < 0 ? -1 : MAYBE;
    }
    case VIA_TUPLE:
        if (pin == CERTAIN) return CERTAIN;
        if (add_type(r, via->object, pin) < 0) return -1;
        if (add_word(r, &((PyVarObject *)via->object)->ob_size, false) < 0) return -1;
        return add_word(r, via->field, false) < 0 ? -1 : MAYBE;
    case VIA_TYPE_OF: return add_word(r, &via->object->ob_type, false) < 0 ? -1 : MAYBE;
    case VIA_TYPE_ATTR: return pin == CERTAIN ? CERTAIN : -2;
    default: return -2;
    }
}

/* From 3.13 on, an object with few attributes keeps them inside itself, and stores do not count in its dict's version: each
   attribute that is read then costs a word of its own. Where many are read, make the object keep them in its dict: putting
   in a key that is no string does that for good. */
static void keep_attributes_in_dict(PyObject *o) {
#if PY_VERSION_HEX >= 0x030D0000
    if (!(Py_TYPE(o)->tp_flags & Py_TPFLAGS_INLINE_VALUES) || !_PyObject_InlineValues(o)->valid) return;
    PyObject **slot = _PyObject_GetDictPtr(o), *key = slot && *slot ? PyLong_FromLong(0) : NULL;
    if (key != NULL && PyDict_Contains(*slot, key) == 0 && PyDict_SetItem(*slot, key, Py_None) == 0)
        PyDict_DelItem(*slot, key);
    Py_XDECREF(key);
    PyErr_Clear();
#else
    (void)o;
#endif
}

static int record_load(Recorder *r, Walk *w, const Ins *p) {
    uint8_t *pins = r->s->pins;
    PyObject *value = w->regs[p->dst];
    int pin = braze_is_root(p->op) ? CERTAIN : pins[p->src], result;
    if (p->level >= 2 || pin == FRESH) {
        result = -2;
    } else if (w->via.kind == VIA_FIXED) {
        result = CERTAIN;
    } else if (w->via.kind == VIA_ROOT || (p->level == 1 && w->via.kind != VIA_NOTHING)) {
        result = add_part(r, PART_SAME, r->ins, 0) < 0 ? -1 : MAYBE;
    } else {
        result = add_via(r, &w->via, pin);
        if (result == -2 && w->via.kind == VIA_DICT) result = add_part(r, PART_SAME, r->ins, 0) < 0 ? -1 : MAYBE;
    }
    if (result == -1) return -1;
    if (result == -2) {
        pins[p->dst] = FRESH;
        return add_part(r, PART_RUN, r->ins, 0);
    }
    if (result == MAYBE && singleton(value)) result = CERTAIN;
    if (result == MAYBE && immutable(value)) {
        if (hold(r, value) < 0) return -1;
        result = CERTAIN;
    }
    pins[p->dst] = (uint8_t)result;
    if (p->op != OP_TENSOR_INT && p->m >= MANY_ATTRIBUTES) keep_attributes_in_dict(value);
    return 0;
}

/* The metadata of a pinned tensor: rank and inline sizes and strides, dtype and device, dispatch keys. -2: not so. */
static int record_tensor(Recorder *r, const Ins *p, PyObject *o) {
    const TensorSpec *s = p->spec;
    if (!s->native || s->rank > 5) return -2;
    for (int64_t i = 0; i < (s->strided ? 2 : 1) * s->rank; i++)
        if (s->dims[i] == BRAZE_FREE_SIZE) return -2; /* a size that may change: compare with the spec each time */
    if (add_word(r, &o->ob_type, false) < 0 || add_word(r, (char *)o + braze_layout.cdata, false) < 0) return -1;
    const char *impl = braze_impl(o), *dims = impl + braze_layout.rank;
    if (add_word(r, dims, false) < 0) return -1;
    for (int64_t i = 0; i < s->rank; i++)
        if (add_word(r, dims + 8 + 8 * i, false) < 0 || (s->strided && add_word(r, dims + 48 + 8 * i, false) < 0)) return -1;
    if (add_word(r, impl + braze_layout.meta, false) < 0 || add_word(r, impl + braze_layout.keys, false) < 0) return -1;
    return 0;
}

/* Whether a pinned tensor requires grad, as words where its autograd metadata are plain, else as a question (PART_GRAD). */
static int record_grad(Recorder *r, const Ins *p, PyObject *o) {
    const TensorLayout *l = &braze_layout;
    const char *impl = braze_impl(o), *autograd = *(const char *const *)(impl + l->autograd);
    bool plain = l->autograd_known && (autograd == NULL || *(const uint64_t *)autograd == l->vtable);
    bool by_grad_fn = plain && autograd != NULL && *(const uint64_t *)(autograd + l->grad_fn) != 0;
    if (!plain || by_grad_fn) return add_part(r, PART_GRAD, r->ins, 0);
    if (add_word(r, impl + l->autograd, false) < 0) return -1;
    if (autograd == NULL) return 0;
    if (!p->spec->requires_grad && add_word(r, autograd + l->grad_fn, false) < 0) return -1;
    return add_word(r, autograd + l->flag, false);
}

static int record_length(Recorder *r, PyObject *o, int pin) {
    if (PyDict_Check(o)) {
        Via via = {.kind = VIA_DICT, .object = o, .dict = o};
        return add_via(r, &via, pin);
    }
    if (!PyList_Check(o) && !PyTuple_Check(o)) return singleton(o) || (pin == CERTAIN && immutable(o)) ? 0 : -2;
    if (PyTuple_Check(o) && pin == CERTAIN) return 0;
    return add_type(r, o, pin) < 0 || add_word(r, &((PyVarObject *)o)->ob_size, false) < 0 ? -1 : 0;
}

static int record_weak(Recorder *r, const Ins *p, int pin) {
    return pin == CERTAIN ? 0 : add_word(r, &((PyWeakReference *)p->obj)->wr_object, false);
}

static int record_code(Recorder *r, const Ins *p, PyObject *o, int pin) {
    if (add_type(r, o, pin) < 0 || add_word(r, &((PyFunctionObject *)o)->func_code, false) < 0) return -1;
    return record_weak(r, p, MAYBE);
}

/* The words that make a passed check pass again; -2: run it again. */
static int check_words(Recorder *r, Walk *w, const Ins *p, PyObject *o, int pin) {
    switch (p->op) {
    case OP_TYPE_IS:
        if (pin == CERTAIN && !(Py_TYPE(o)->tp_flags & Py_TPFLAGS_HEAPTYPE)) return 0;
        return add_word(r, &o->ob_type, false);
    case OP_IS:
    case OP_NOT_NONE: return 0;
    case OP_IS_WEAK: return record_weak(r, p, pin);
    case OP_EQUALS: return pin == CERTAIN ? 0 : hold(r, o);
    case OP_RANGE: return 0; /* an int: held, hence certain */
    case OP_TRUTH:
    case OP_LENGTH: return record_length(r, o, pin);
    case OP_TENSOR: return record_tensor(r, p, o);
    case OP_CODE_IS: return record_code(r, p, o, pin);
    case OP_DICT_KEYS:
    case OP_DICT_HAS:
    case OP_LACKS:
    case OP_NO_ATTR: return add_via(r, &w->via, pin);
    default: return -2;
    }
}

static int record_check(Recorder *r, Walk *w, const Ins *p) {
    int pin = p->src >= 0 ? r->s->pins[p->src] : FRESH;
    int result = -2;
    if (p->op == OP_DISTINCT) {
        result = 0;
        for (int64_t i = 0; i < p->n; i++)
            if (!r->s->pins[p->list[i]]) result = -2;
    } else if (p->op == OP_SAME) {
        result = pin && r->s->pins[p->dst] ? 0 : -2;
    } else if (pin != FRESH && p->level == 0) {
        result = check_words(r, w, p, w->regs[p->src], pin);
    }
    if (result == -1) return -1;
    if (result == -2) return add_part(r, PART_RUN, r->ins, 0);
    return p->op == OP_TENSOR ? record_grad(r, p, w->regs[p->src]) : 0;
}

Recorder *braze_record_begin(Walk *w) {
    Program *p = w->p;
    Recorder *r = PyMem_Calloc(1, sizeof *r);
    if (r == NULL) return NULL;
    r->p = p;
    r->s = &p->spare;
    r->s->nparts = r->s->nwords = 0;
    Py_CLEAR(r->s->holds);
    r->table_size = 256;
    while (r->table_size < 8 * p->n) r->table_size *= 2;
    r->table = PyMem_Calloc(r->table_size, sizeof *r->table);
    if (r->table == NULL) {
        PyMem_Free(r);
        return NULL;
    }
    memset(r->s->pins, FRESH, p->nregs);
    return r;
}

int braze_record(Recorder *r, Walk *w, int32_t index) {
    const Ins *p = &w->p->ins[index];
    r->ins = index;
    return braze_is_load(p->op) ? record_load(r, w, p) : record_check(r, w, p);
}

void braze_record_end(Recorder *r, Walk *w, bool keep) {
    Program *p = w->p;
    if (keep) {
        Stamp old = p->stamp;
        p->stamp = p->spare;
        p->spare = old;
        p->stamp.valid = true;
        p->count_stamps++;
    }
    PyMem_Free(r->table);
    PyMem_Free(r);
}

/* ---- running ---- */

static inline Py_ssize_t first_difference(const Word *words, Py_ssize_t a, Py_ssize_t b) {
    for (Py_ssize_t i = a; i < b; i++) {
        __builtin_prefetch(words[i + AHEAD].at);
        if (*words[i].at != words[i].value) return i;
    }
    return -1;
}

int braze_stamp_run(Walk *w, int32_t *missed_ins, int32_t *missed_word) {
    Program *p = w->p;
    const Stamp *s = &p->stamp;
    *missed_ins = *missed_word = -1;
    for (const Part *part = s->parts, *end = part + s->nparts; part < end; part++) {
        if (part->kind == PART_WORDS) {
            Py_ssize_t i = first_difference(s->words, part->a, part->b);
            if (i < 0) continue;
            *missed_word = (int32_t)i;
            *missed_ins = s->infos[i].ins;
            return TRY_FULL;
        }
        const Ins *ins = &p->ins[part->a];
        if (part->kind == PART_GRAD) {
            if (braze_layout.requires_grad(braze_impl(w->regs[ins->src])) == (ins->spec->requires_grad != 0)) continue;
            p->failed = part->a;
            return 0;
        }
        PyObject *before = ins->dst >= 0 ? w->regs[ins->dst] : NULL;
        int r = braze_step(w, ins);
        if (r != 1) {
            p->failed = part->a;
            return r;
        }
        if (part->kind == PART_SAME && w->regs[ins->dst] != before) {
            w->regs[ins->dst] = before;
            *missed_ins = part->a;
            return TRY_FULL;
        }
    }
    return 1;
}

static void count_hot(Program *p, PyObject *dict) {
    int i = 0;
    while (i < p->nhot && p->hot[i] != dict) i++;
    if (i == HOT_DICTS) return;
    if (i == p->nhot) {
        p->hot[p->nhot++] = dict;
        p->hot_count[i] = 0;
    }
    if (p->hot_count[i] < 255) p->hot_count[i]++;
}

/* The fast path missed at an instruction (and, if >= 0, a word of it), and the full walk passed: what changes often is
   compared by value next time, and what then still changes is loaded afresh. */
void braze_stamp_missed(Program *p, int32_t ins, int32_t word) {
    const Stamp *s = &p->stamp;
    if (word >= 0 && s->infos[word].version) {
        count_hot(p, (PyObject *)((char *)s->words[word].at - offsetof(PyDictObject, ma_version_tag)));
    } else if (ins >= 0 && ++p->ins[ins].fails >= 2) {
        Ins *i = &p->ins[ins];
        i->fails = 0;
        i->level = braze_is_root(i->op) || i->level ? 2 : 1;
    }
    if (++p->misses_in_a_row > 8) p->pause = 1 << (p->misses_in_a_row < 16 ? p->misses_in_a_row - 8 : 8);
}
