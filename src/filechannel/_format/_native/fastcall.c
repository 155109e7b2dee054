/* Calling encoders and decoders: msgspec's are C functions, and the generic call costs as much as they do. */
#include "core.h"

void callee_init(Callee *callee, PyObject *callable) {
    memset(callee, 0, sizeof *callee);
    if (callable == Py_None) return;
    callee->callable = Py_NewRef(callable);
    if (!PyCFunction_CheckExact(callable) || PyCFunction_GET_FLAGS(callable) != METH_FASTCALL) return;
    callee->direct = (PyObject * (*)(PyObject *, PyObject *const *, Py_ssize_t))(void (*)(void))PyCFunction_GET_FUNCTION(callable);
    callee->self = PyCFunction_GET_SELF(callable);
}
