/* Launches: makes the launches of one call, which genkern.runtime.launch.launcher prepares. It takes less host time than
 * Python.
 * Call, in _native_call.h, is a whole eager call after its kernel has been found.
 *
 * The GIL is released only during the driver's own call, which blocks if a stream's queue is full. Therefore each launch
 * has its arguments on its own stack. Built against the stable ABI of Python 3.10; if it was not built, genkern does the
 * same through ctypes. Functions of the driver are passed as addresses, so that nothing is linked, and tests can pass
 * their own.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Cached tensor maps per parameter: a caching allocator returns the same few addresses again and again. */
#define WAYS 8
#define MAP_BYTES 128
#define ALIGNMENT 16
/* Constants of cuda.h, and the bit that maps of small tensors must not have. A test compares them with cuda_driver.py. */
#define CLUSTER_DIMENSION 4
#define CLUSTER_SCHEDULING 5
#define STARTS_EARLY 6
#define SPREAD 1
#define L2_128B 2
#define BIT (1ull << 21)

/* Limits per kernel; genkern's have up to 104 parameters and 20 maps: a tile of 184 rows that 8 programs store is 17
 * boxes of C. */
#define MOST_PARAMETERS 192
#define MOST_MAPS 32

enum { ADDRESS, NUMBER, TENSOR_MAP };

/* CUlaunchConfig and CUlaunchAttribute of cuda.h. */
typedef struct {
    int id, pad;
    uint32_t value[16];
} Attribute;

typedef struct {
    uint32_t grid[3], block[3], shared_bytes;
    void *stream;
    Attribute *attributes;
    uint32_t attribute_count;
} Config;

typedef int (*LaunchEx)(const Config *, void *, void **, void **);
typedef int (*LaunchPlain)(void *, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, void *, void **,
                           void **);
typedef int (*Encode)(void *, int, uint32_t, void *, const uint64_t *, const uint64_t *, const uint32_t *,
                      const uint32_t *, int, int, int, int);

typedef struct {
    uint64_t addresses[WAYS];
    unsigned char (*maps)[MAP_BYTES]; /* WAYS maps, each aligned to 64 bytes */
    int used, next, element_type, swizzle, clears_bit;
    uint64_t sizes[2], pitch_bytes, offset_bytes;
    uint32_t box[2];
} Descriptor;

typedef struct {
    int kind;
    Py_ssize_t slot;
    uint64_t value;
    Descriptor *descriptor;
} Parameter;

typedef struct {
    void *function;
    Config config;
    Attribute attributes[3];
    Py_ssize_t count;
    Parameter *parameters;
} Launch;

typedef struct {
    PyObject_HEAD
    void *launch_kernel;
    Encode encode;
    int plain;
    PyObject *fail; /* raises the error for a status */
    Py_ssize_t operands; /* number of leading addresses that must be aligned */
    Py_ssize_t slots, count;
    Launch *launches;
} Launches;

static void free_descriptor(Descriptor *descriptor) {
    if (descriptor) {
        free(descriptor->maps);
        PyMem_Free(descriptor);
    }
}

static void launches_dealloc(Launches *self) {
    for (Py_ssize_t i = 0; self->launches && i < self->count; ++i) {
        Launch *launch = &self->launches[i];
        for (Py_ssize_t p = 0; launch->parameters && p < launch->count; ++p)
            free_descriptor(launch->parameters[p].descriptor);
        PyMem_Free(launch->parameters);
    }
    PyMem_Free(self->launches);
    Py_XDECREF(self->fail);
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static Descriptor *make_descriptor(PyObject *form, Py_ssize_t *slot) {
    int kind, element_type, swizzle, clears_bit;
    unsigned long long rows, columns, pitch, offset = 0;
    unsigned int box_rows, box_columns;
    if (!PyArg_ParseTuple(form, "iniKKKIIip|K", &kind, slot, &element_type, &rows, &columns, &pitch, &box_rows,
                          &box_columns, &swizzle, &clears_bit, &offset))
        return NULL;
    Descriptor *made = PyMem_Calloc(1, sizeof(Descriptor));
    if (!made || posix_memalign((void **)&made->maps, 64, WAYS * MAP_BYTES)) {
        PyMem_Free(made);
        PyErr_NoMemory();
        return NULL;
    }
    made->element_type = element_type;
    made->swizzle = swizzle;
    made->clears_bit = clears_bit;
    made->sizes[0] = columns;
    made->sizes[1] = rows;
    made->pitch_bytes = pitch;
    made->offset_bytes = offset;
    made->box[0] = box_columns;
    made->box[1] = box_rows;
    return made;
}

static int fill_parameter(Parameter *parameter, PyObject *form, Py_ssize_t slots) {
    PyObject *first = PyTuple_GetItem(form, 0);
    if (!first)
        return -1;
    parameter->kind = (int)PyLong_AsLong(first);
    if (parameter->kind == TENSOR_MAP) {
        if (!(parameter->descriptor = make_descriptor(form, &parameter->slot)))
            return -1;
    } else {
        int kind;
        unsigned long long value;
        if (!PyArg_ParseTuple(form, "iK", &kind, &value))
            return -1;
        parameter->value = value;
        parameter->slot = kind == ADDRESS ? (Py_ssize_t)value : 0;
    }
    if (parameter->slot < 0 || parameter->slot >= slots) {
        PyErr_SetString(PyExc_ValueError, "a parameter is of a tensor that no call gives");
        return -1;
    }
    return 0;
}

static int fill_launch(Launch *launch, PyObject *form, Py_ssize_t slots) {
    unsigned long long function;
    PyObject *parameters;
    int cluster, starts_early;
    uint32_t *grid = launch->config.grid, *block = launch->config.block;
    if (!PyArg_ParseTuple(form, "K(III)IIipO!", &function, &grid[0], &grid[1], &grid[2], &block[0],
                          &launch->config.shared_bytes, &cluster, &starts_early, &PyTuple_Type, &parameters))
        return -1;
    launch->function = (void *)(uintptr_t)function;
    grid[0] *= (uint32_t)cluster; /* clusters extend along the first dimension */
    block[1] = block[2] = 1;
    uint32_t *count = &launch->config.attribute_count;
    if (starts_early)
        launch->attributes[(*count)++] = (Attribute){STARTS_EARLY, 0, {1}};
    if (cluster > 1) {
        launch->attributes[(*count)++] = (Attribute){CLUSTER_DIMENSION, 0, {(uint32_t)cluster, 1, 1}};
        launch->attributes[(*count)++] = (Attribute){CLUSTER_SCHEDULING, 0, {SPREAD}};
    }
    launch->config.attributes = launch->attributes;
    Py_ssize_t size = PyTuple_Size(parameters);
    launch->parameters = PyMem_Calloc(size ? size : 1, sizeof(Parameter));
    if (!launch->parameters) {
        PyErr_NoMemory();
        return -1;
    }
    launch->count = size;
    int maps = 0;
    for (Py_ssize_t p = 0; p < size; ++p) {
        if (fill_parameter(&launch->parameters[p], PyTuple_GetItem(parameters, p), slots))
            return -1;
        maps += launch->parameters[p].kind == TENSOR_MAP;
    }
    if (size > MOST_PARAMETERS || maps > MOST_MAPS) {
        PyErr_SetString(PyExc_ValueError, "a kernel has more parameters than any of genkern's");
        return -1;
    }
    return 0;
}

static PyObject *launches_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    unsigned long long launch_kernel, encode;
    int plain;
    PyObject *fail, *forms;
    Py_ssize_t operands, slots;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "KKpOnnO!", &launch_kernel, &encode, &plain, &fail, &operands, &slots, &PyTuple_Type,
                          &forms))
        return NULL;
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Launches *self = (Launches *)allocate(type, 0);
    if (!self)
        return NULL;
    self->launch_kernel = (void *)(uintptr_t)launch_kernel;
    self->encode = (Encode)(uintptr_t)encode;
    self->plain = plain;
    self->operands = operands;
    self->slots = slots;
    Py_INCREF(fail);
    self->fail = fail;
    self->count = PyTuple_Size(forms);
    self->launches = PyMem_Calloc(self->count ? self->count : 1, sizeof(Launch));
    if (!self->launches) {
        Py_DECREF((PyObject *)self);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < self->count; ++i)
        if (fill_launch(&self->launches[i], PyTuple_GetItem(forms, i), slots)) {
            Py_DECREF((PyObject *)self);
            return NULL;
        }
    return (PyObject *)self;
}

/* Return the tensor map for a tensor's address, from the cache or newly encoded; NULL and the status on failure. */
static void *map_at(Launches *self, Descriptor *descriptor, uint64_t tensor, int *status) {
    uint64_t address = tensor + descriptor->offset_bytes;
    for (int way = 0; way < descriptor->used; ++way)
        if (descriptor->addresses[way] == address)
            return descriptor->maps[way];
    static const uint32_t ones[2] = {1, 1};
    int way = descriptor->next;
    unsigned char *map = descriptor->maps[way];
    *status = self->encode(map, descriptor->element_type, 2, (void *)(uintptr_t)address, descriptor->sizes,
                           &descriptor->pitch_bytes, descriptor->box, ones, 0, descriptor->swizzle, L2_128B, 0);
    if (*status) {
        descriptor->addresses[way] = 0;
        return NULL;
    }
    if (descriptor->clears_bit)
        ((uint64_t *)map)[1] &= ~BIT;
    descriptor->addresses[way] = address;
    descriptor->next = (way + 1) % WAYS;
    if (descriptor->used < WAYS)
        ++descriptor->used;
    return map;
}

static int make_launch(Launches *self, const Launch *launch, void *stream, const uint64_t *addresses) {
    _Alignas(64) unsigned char maps[MOST_MAPS][MAP_BYTES];
    uint64_t values[MOST_PARAMETERS];
    void *pointers[MOST_PARAMETERS + 1];
    int status = 0, used = 0;
    for (Py_ssize_t p = 0; p < launch->count; ++p) {
        const Parameter *parameter = &launch->parameters[p];
        pointers[p] = &values[p];
        if (parameter->kind == TENSOR_MAP) {
            void *map = map_at(self, parameter->descriptor, addresses[parameter->slot], &status);
            if (!map)
                return status;
            pointers[p] = memcpy(maps[used++], map, MAP_BYTES);
        } else
            values[p] = parameter->kind == ADDRESS ? addresses[parameter->slot] : parameter->value;
    }
    Config config = launch->config;
    config.stream = stream;
    void *launch_kernel = self->launch_kernel, *function = launch->function;
    int plain = self->plain;
    Py_BEGIN_ALLOW_THREADS
    if (plain) {
        const uint32_t *grid = config.grid;
        status = ((LaunchPlain)launch_kernel)(function, grid[0], grid[1], grid[2], config.block[0], 1, 1,
                                              config.shared_bytes, stream, pointers, NULL);
    } else
        status = ((LaunchEx)launch_kernel)(&config, function, pointers, NULL);
    Py_END_ALLOW_THREADS
    return status;
}

/* Return the first status of the driver that is not success, else 0. */
static int launch_all(Launches *self, void *stream, const uint64_t *addresses) {
    int status = 0;
    for (Py_ssize_t i = 0; i < self->count && !status; ++i)
        status = make_launch(self, &self->launches[i], stream, addresses);
    return status;
}

#define MOST_SLOTS 32

static PyObject *launches_launch(Launches *self, PyObject *const *args, Py_ssize_t count) {
    uint64_t addresses[MOST_SLOTS], together = 0;
    if (count != 2 || !PyTuple_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "launch takes a stream and a tuple of addresses");
        return NULL;
    }
    Py_ssize_t given = PyTuple_Size(args[1]);
    if (given < self->operands || given > self->slots || given > MOST_SLOTS) {
        PyErr_SetString(PyExc_ValueError, "launch is given other tensors than it was prepared for");
        return NULL;
    }
    void *stream = (void *)(uintptr_t)PyLong_AsUnsignedLongLong(args[0]);
    for (Py_ssize_t i = 0; i < given; ++i) {
        addresses[i] = PyLong_AsUnsignedLongLong(PyTuple_GetItem(args[1], i));
        if (i < self->operands)
            together |= addresses[i];
    }
    if (PyErr_Occurred())
        return NULL;
    if (together % ALIGNMENT)
        Py_RETURN_FALSE;
    int status = launch_all(self, stream, addresses);
    if (status)
        return PyObject_CallFunction(self->fail, "i", status);
    Py_RETURN_TRUE;
}

static PyMethodDef methods[] = {
    {"launch", (PyCFunction)(void (*)(void))launches_launch, METH_FASTCALL,
     "launch(stream, addresses): make all launches; return False, with none made, if an operand is not 16-byte aligned."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, launches_new},
    {Py_tp_dealloc, launches_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_doc, "The launches of one call."},
    {0, NULL},
};

static PyType_Spec spec = {"genkern.runtime.launch._native.Launches", sizeof(Launches), 0, Py_TPFLAGS_DEFAULT, slots};

#include "_native_call.h"

static PyMethodDef functions[] = {
    {"forget", call_forget, METH_NOARGS, "forget(): make Calls of this thread ask `room` for their workspaces again."},
    {NULL, NULL, 0, NULL},
};

static int add_type(PyObject *module, const char *name, PyType_Spec *of) {
    PyObject *type = PyType_FromSpec(of);
    if (!type)
        return -1;
    if (PyModule_AddObject(module, name, type)) {
        Py_DECREF(type);
        return -1;
    }
    return 0;
}

/* Version of the arguments that launcher.py passes: it ignores an extension that was built for another version. */
#define FORMS 2

static int add_types(PyObject *module) {
    if (!data_ptr && !(data_ptr = PyUnicode_InternFromString("data_ptr")))
        return -1;
    if (PyModule_AddIntConstant(module, "FORMS", FORMS))
        return -1;
    return add_type(module, "Launches", &spec) || add_type(module, "Call", &call_spec) ? -1 : 0;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, add_types}, {0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", NULL, 0, functions, module_slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
