"""Holds the kernel's lock of the network configuration (RTNL) until a line, or the end, comes on
standard input.

An ethtool request reads its argument under the lock. The argument lies on a page that is not there
yet (userfaultfd), so the kernel waits for the page, with the lock. Says "held" when it does."""
import ctypes
import fcntl
import os
import socket
import struct
import sys
import threading

PAGE = os.sysconf("SC_PAGE_SIZE")
USERFAULTFD = 323  # x86-64
SIOCETHTOOL, ETHTOOL_GFEATURES = 0x8946, 0x3A
PROT_READ_WRITE, MAP_PRIVATE_ANONYMOUS = 3, 0x22


def uffdio(number, size):
    return (3 << 30) | (size << 16) | (0xAA << 8) | number


libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]

faults = libc.syscall(USERFAULTFD, os.O_CLOEXEC)
if faults < 0:
    sys.exit("userfaultfd: " + os.strerror(ctypes.get_errno()))
fcntl.ioctl(faults, uffdio(0x3F, 24), struct.pack("QQQ", 0xAA, 0, 0))
absent = libc.mmap(None, 2 * PAGE, PROT_READ_WRITE, MAP_PRIVATE_ANONYMOUS, -1, 0) + PAGE
fcntl.ioctl(faults, uffdio(0x00, 32), struct.pack("QQQQ", absent, PAGE, 1, 0))

# The command is read before the lock is taken; the rest, on the absent page, under it.
argument = absent - 4
ctypes.memmove(argument, struct.pack("I", ETHTOOL_GFEATURES), 4)
request = struct.pack("16sQ8x", b"lo", argument)


def ask():
    try:
        fcntl.ioctl(socket.socket(socket.AF_INET, socket.SOCK_DGRAM), SIOCETHTOOL, request)
    except OSError:
        pass  # whatever it says: it was asked under the lock


asking = threading.Thread(target=ask)
asking.start()
os.read(faults, 32)
print("held", flush=True)
sys.stdin.readline()
fcntl.ioctl(faults, uffdio(0x04, 32), struct.pack("QQQQ", absent, PAGE, 0, 0))
asking.join()
