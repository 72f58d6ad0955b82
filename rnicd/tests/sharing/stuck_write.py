"""Writes into the memory of a process's port, from a page that never comes, until standard input
ends."""

import ctypes
import fcntl
import mmap
import os
import struct
import sys
import threading

PAGE = mmap.PAGESIZE
# From linux/userfaultfd.h.
NEW, API, REGISTER, MISSING = 0xAA00, 0xC018AA3F, 0xC020AA00, 1

descriptors = f"/proc/{sys.argv[1]}/fd"
paths = [os.path.join(descriptors, name) for name in os.listdir(descriptors)]
memory = next(path for path in paths if os.readlink(path).startswith("/memfd:rnic-umem"))
file = os.open(memory, os.O_RDWR)

libc = ctypes.CDLL(None, use_errno=True)
libc.write.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
page = mmap.mmap(-1, PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
at = ctypes.addressof(ctypes.c_char.from_buffer(page))
faults = fcntl.ioctl(os.open("/dev/userfaultfd", os.O_RDWR | os.O_CLOEXEC), NEW, os.O_CLOEXEC)
fcntl.ioctl(faults, API, struct.pack("=QQQ", 0xAA, 0, 0))
fcntl.ioctl(faults, REGISTER, struct.pack("=QQQQ", at, PAGE, MISSING, 0))

threading.Thread(target=libc.write, args=(file, at, PAGE), daemon=True).start()
os.read(faults, 32)
print("writes", flush=True)
sys.stdin.read()
os._exit(0)
