/* Call: an eager call whose kernel is known (genkern.runtime.launch.native_call); a part of _native.c.
 *
 * It checks that the device is this thread's current one, that no graph is captured if a workspace is needed, and that
 * operands are aligned; then it allocates the output, checks its alignment and launches. If a check fails, nothing has
 * been launched, and the call is passed on to a Python function.
 */

#define MOST_ROOMS 4
/* cudaStreamCaptureModeRelaxed */
#define RELAXED 2

/* cuCtxGetCurrent writes a pointer, hipGetDevice an int. */
typedef int (*GetCurrent)(void *);
typedef int (*CaptureInfo)(void *, int *, uint64_t *, void *, void *, void *);
typedef int (*CaptureInfoPlain)(void *, int *, uint64_t *);
typedef int (*ExchangeMode)(int *);
/* cublasLtMatmul */
typedef int (*Matmul)(void *, void *, void *, void *, void *, void *, void *, void *, void *, void *, void *, void *,
                      void *, void *, size_t, void *);

/* Workspace and counters of a thread on a stream. */
typedef struct {
    uint64_t thread, stream, workspace, counters;
} Room;

/* An algorithm of cuBLASLt. `parts` are the handle, alpha, beta, the layouts of its A, B and D, and the algorithm. */
enum { HANDLE, ALPHA, BETA, OF_A, OF_B, OF_D, ALGORITHM, PARTS };

typedef struct {
    Matmul matmul;
    ExchangeMode exchange;
    void *parts[PARTS];
    uint64_t workspace_bytes;
    PyObject *describe;                /* maps the addresses after C to (descriptor, its owner) */
    uint64_t described[MOST_SLOTS];    /* the addresses in `descriptor` */
    PyObject *owner;
    void *descriptor;
} Algorithm;

typedef struct {
    PyObject_HEAD
    Launches *launches; /* NULL: `algorithm` is called */
    Algorithm algorithm;
    GetCurrent get_current;
    void *capture_info; /* NULL: no workspace */
    int plain, broken, next_room;
    uint64_t current, alignment;
    Py_ssize_t given;
    PyObject *stream_of, *index, *empty, *form, *room, *otherwise, *failed;
    Room rooms[MOST_ROOMS];
} Call;

static PyObject *data_ptr;
/* A number is never reused; a thread that must forget its workspaces takes a new one. */
static uint64_t last_thread;
static _Thread_local uint64_t this_thread;

static PyObject *call_forget(PyObject *module, PyObject *none) {
    (void)module, (void)none;
    this_thread = 0;
    Py_RETURN_NONE;
}

static int call_traverse(Call *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE((PyObject *)self));
    Py_VISIT((PyObject *)self->launches);
    Py_VISIT(self->algorithm.describe);
    Py_VISIT(self->algorithm.owner);
    Py_VISIT(self->stream_of);
    Py_VISIT(self->empty);
    Py_VISIT(self->form);
    Py_VISIT(self->room);
    Py_VISIT(self->otherwise);
    Py_VISIT(self->failed);
    return 0;
}

static int call_clear(Call *self) {
    Py_CLEAR(self->launches);
    Py_CLEAR(self->algorithm.describe);
    Py_CLEAR(self->algorithm.owner);
    Py_CLEAR(self->stream_of);
    Py_CLEAR(self->index);
    Py_CLEAR(self->empty);
    Py_CLEAR(self->form);
    Py_CLEAR(self->room);
    Py_CLEAR(self->otherwise);
    Py_CLEAR(self->failed);
    return 0;
}

static void call_dealloc(Call *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    call_clear(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static int fill_algorithm(Algorithm *algorithm, PyObject *form) {
    unsigned long long matmul, exchange, parts[PARTS], size;
    PyObject *describe;
    if (!PyArg_ParseTuple(form, "KKKKKKKKKKO", &matmul, &exchange, &parts[0], &parts[1], &parts[2], &parts[3], &parts[4],
                          &parts[5], &parts[6], &size, &describe))
        return -1;
    algorithm->matmul = (Matmul)(uintptr_t)matmul;
    algorithm->exchange = (ExchangeMode)(uintptr_t)exchange;
    for (int i = 0; i < PARTS; ++i)
        algorithm->parts[i] = (void *)(uintptr_t)parts[i];
    algorithm->workspace_bytes = size;
    Py_INCREF(describe);
    algorithm->describe = describe;
    return 0;
}

static PyObject *call_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    unsigned long long get_current, current, capture_info, alignment;
    int plain;
    Py_ssize_t given;
    PyObject *body, *stream_of, *index, *empty, *form, *room, *otherwise, *failed;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "OKKKpKnOOOO!OOO", &body, &get_current, &current, &capture_info, &plain, &alignment,
                          &given, &stream_of, &index, &empty, &PyTuple_Type, &form, &room, &otherwise, &failed))
        return NULL;
    if (given < 2 || given > MOST_SLOTS - 3 || !alignment ||
        (!PyTuple_Check(body) && ((Launches *)body)->slots > given + 3)) {
        PyErr_SetString(PyExc_ValueError, "a call takes x, weight, and what a format has besides");
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Call *self = (Call *)allocate(type, 0);
    if (!self)
        return NULL;
    self->get_current = (GetCurrent)(uintptr_t)get_current;
    self->current = current;
    self->capture_info = (void *)(uintptr_t)capture_info;
    self->plain = plain;
    self->alignment = alignment;
    self->given = given;
#define KEEP(name) (Py_INCREF(name), self->name = name)
    KEEP(stream_of), KEEP(index), KEEP(empty), KEEP(form), KEEP(room), KEEP(otherwise), KEEP(failed);
#undef KEEP
    if (PyTuple_Check(body)) {
        if (fill_algorithm(&self->algorithm, body)) {
            Py_DECREF((PyObject *)self);
            return NULL;
        }
    } else {
        Py_INCREF(body);
        self->launches = (Launches *)body;
    }
    return (PyObject *)self;
}

/* Store the unsigned number that a function returned; return -1 with an exception if it returned none. */
static int number_of(PyObject *found, uint64_t *number) {
    if (!found)
        return -1;
    *number = PyLong_AsUnsignedLongLong(found);
    Py_DECREF(found);
    return *number == (uint64_t)-1 && PyErr_Occurred() ? -1 : 0;
}

static int address_of(PyObject *tensor, uint64_t *address) {
    return number_of(PyObject_CallMethodObjArgs(tensor, data_ptr, NULL), address);
}

static int is_capturing(const Call *self, void *stream) {
    int capturing = 0;
    uint64_t number = 0;
    int status = self->plain
                     ? ((CaptureInfoPlain)self->capture_info)(stream, &capturing, &number)
                     : ((CaptureInfo)self->capture_info)(stream, &capturing, &number, NULL, NULL, NULL);
    return status || capturing;
}

/* Return this thread's workspace on the stream; NULL with an exception if there is none. */
static const Room *room_of(Call *self, uint64_t stream) {
    if (!this_thread)
        this_thread = ++last_thread;
    for (int i = 0; i < MOST_ROOMS; ++i)
        if (self->rooms[i].thread == this_thread && self->rooms[i].stream == stream)
            return &self->rooms[i];
    unsigned long long workspace, counters;
    PyObject *found = PyObject_CallFunction(self->room, "K", (unsigned long long)stream);
    if (!found)
        return NULL;
    int parsed = PyArg_ParseTuple(found, "KK", &workspace, &counters);
    Py_DECREF(found);
    if (!parsed)
        return NULL;
    Room *room = &self->rooms[self->next_room];
    self->next_room = (self->next_room + 1) % MOST_ROOMS;
    *room = (Room){this_thread, stream, workspace, counters};
    return room;
}

/* Return the library's status, or -1 with an exception. */
static int call_algorithm(Algorithm *self, Py_ssize_t extra, void *stream, const uint64_t *addresses) {
    const uint64_t *more = addresses + 3;
    uint64_t workspace = more[extra];
    PyObject *before = NULL, *found = NULL;
    if (!self->owner || memcmp(self->described, more, extra * sizeof(*more))) {
        PyObject *given = PyTuple_New(extra);
        for (Py_ssize_t i = 0; given && i < extra; ++i)
            PyTuple_SetItem(given, i, PyLong_FromUnsignedLongLong(more[i]));
        PyObject *owner_of_it;
        unsigned long long number;
        found = given ? PyObject_CallObject(self->describe, given) : NULL;
        Py_XDECREF(given);
        if (!found || !PyArg_ParseTuple(found, "KO", &number, &owner_of_it)) {
            Py_XDECREF(found);
            return -1;
        }
        before = self->owner;
        Py_INCREF(owner_of_it);
        self->owner = owner_of_it;
        self->descriptor = (void *)(uintptr_t)number;
        memcpy(self->described, more, extra * sizeof(*more));
    }
    void **parts = self->parts, *descriptor = self->descriptor;
    void *a = (void *)(uintptr_t)addresses[0], *b = (void *)(uintptr_t)addresses[1], *d = (void *)(uintptr_t)addresses[2];
    /* Dropping references may run Python code, so from here on another thread may replace the descriptor: keep its owner. */
    PyObject *owner = self->owner;
    Py_INCREF(owner);
    Py_XDECREF(before);
    Py_XDECREF(found);
    int status, mode = RELAXED;
    Py_BEGIN_ALLOW_THREADS
    /* The library loads a kernel at its first call, which may happen while a graph is captured. */
    self->exchange(&mode);
    status = self->matmul(parts[HANDLE], descriptor, parts[ALPHA], b, parts[OF_A], a, parts[OF_B], parts[BETA], d,
                          parts[OF_D], d, parts[OF_D], parts[ALGORITHM], (void *)(uintptr_t)workspace,
                          self->workspace_bytes, stream);
    self->exchange(&mode);
    Py_END_ALLOW_THREADS
    Py_DECREF(owner);
    return status;
}

static PyObject *hand_on(PyObject *function, PyObject *const *args, Py_ssize_t count) {
    PyObject *given = PyTuple_New(count), *found = NULL;
    if (!given)
        return NULL;
    for (Py_ssize_t i = 0; i < count; ++i) {
        Py_INCREF(args[i]);
        PyTuple_SetItem(given, i, args[i]);
    }
    found = PyObject_CallObject(function, given);
    Py_DECREF(given);
    return found;
}

static PyObject *call_call(Call *self, PyObject *const *args, Py_ssize_t count) {
    uint64_t addresses[MOST_SLOTS], together = 0, stream = 0, current = 0;
    if (count != self->given) {
        PyErr_SetString(PyExc_TypeError, "a call is given other tensors than it was prepared for");
        return NULL;
    }
    if (self->broken || self->get_current(&current) || current != self->current)
        return hand_on(self->otherwise, args, count);
    if (number_of(PyObject_CallFunctionObjArgs(self->stream_of, self->index, NULL), &stream))
        return NULL;
    void *queue = (void *)(uintptr_t)stream;
    if (self->capture_info && is_capturing(self, queue))
        return hand_on(self->otherwise, args, count);
    for (Py_ssize_t i = 0; i < count; ++i) {
        uint64_t *address = &addresses[i < 2 ? i : i + 1];
        if (address_of(args[i], address))
            return NULL;
        together |= *address;
    }
    if (together % self->alignment)
        return hand_on(self->otherwise, args, count);
    addresses[count + 1] = 0;
    if (self->capture_info) {
        const Room *room = room_of(self, stream);
        if (!room) {
            /* No workspace can be kept, or no memory is left; the Python function handles both. */
            if (!PyErr_ExceptionMatches(PyExc_Exception))
                return NULL;
            PyErr_Clear();
            return hand_on(self->otherwise, args, count);
        }
        addresses[count + 1] = room->workspace;
        addresses[count + 2] = room->counters;
    }
    PyObject *out = PyObject_CallObject(self->empty, self->form);
    if (!out || address_of(out, &addresses[2])) {
        Py_XDECREF(out);
        return NULL;
    }
    int status = 0;
    if (addresses[2] % self->alignment) {
        Py_DECREF(out);
        return hand_on(self->otherwise, args, count);
    }
    status = self->launches ? launch_all(self->launches, queue, addresses)
                            : call_algorithm(&self->algorithm, count - 2, queue, addresses);
    if (!status)
        return out;
    Py_DECREF(out);
    if (PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_Exception))
            return NULL;
        /* A descriptor was refused. The Python function reports that and falls back on the library. */
        PyErr_Clear();
        return hand_on(self->otherwise, args, count);
    }
    self->broken = 1;
    PyObject *said = PyObject_CallFunction(self->failed, "i", status);
    Py_XDECREF(said);
    return said ? hand_on(self->otherwise, args, count) : NULL;
}

static PyObject *call_stop(Call *self, PyObject *none) {
    (void)none;
    self->broken = 1;
    Py_RETURN_NONE;
}

static PyMethodDef call_methods[] = {
    {"call", (PyCFunction)(void (*)(void))call_call, METH_FASTCALL, "call(x, weight, ...): the product."},
    {"stop", (PyCFunction)(void (*)(void))call_stop, METH_NOARGS, "stop(): pass every later call on to the Python function."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot call_slots[] = {
    {Py_tp_new, call_new},         {Py_tp_dealloc, call_dealloc}, {Py_tp_traverse, call_traverse},
    {Py_tp_clear, call_clear},     {Py_tp_methods, call_methods}, {Py_tp_doc, "A call whose kernel is known."},
    {0, NULL},
};

static PyType_Spec call_spec = {"genkern.runtime.launch._native.Call", sizeof(Call), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, call_slots};
