use std::num::NonZeroUsize;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

use super::*;

const PAGE: usize = 4096;

/// Two pages, of which the second can be taken away.
struct Pages(NonNull<u8>);

impl Pages {
    fn new() -> Self {
        let len = NonZeroUsize::new(2 * PAGE).unwrap();
        let rights = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        install().unwrap();
        // SAFETY: the kernel chooses the place, where nothing else is.
        let at = unsafe { mmap_anonymous(None, len, rights, MapFlags::MAP_PRIVATE) };
        Self(at.unwrap().cast())
    }

    fn at(&self, offset: usize) -> *mut u8 {
        self.0.as_ptr().wrapping_add(offset)
    }

    fn protect_second(&self, rights: ProtFlags) {
        let second = NonNull::new(self.at(PAGE)).unwrap();
        // SAFETY: it is a page of this mapping, over which there is no reference.
        unsafe { mprotect(second.cast(), PAGE, rights) }.unwrap();
    }

    fn write(&self, offset: usize, octets: &[u8]) -> Result<(), Fault> {
        // SAFETY: the octets are of these pages, or gone.
        unsafe { write(self.at(offset), octets) }
    }

    fn read(&self, offset: usize, octets: &mut [u8]) -> Result<(), Fault> {
        // SAFETY: the octets are of these pages, or gone.
        unsafe { read(self.at(offset), octets) }
    }

    fn update(&self, offset: usize, change: impl Fn(u64) -> u64) -> Result<u64, Fault> {
        // SAFETY: the octets are of these pages, or gone.
        unsafe { update(self.at(offset).cast(), change) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: nothing refers to these pages any more.
        unsafe { munmap(self.0.cast(), 2 * PAGE) }.unwrap();
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 31 + n / 256) as u8).collect()
}

#[test]
fn copies_of_any_length_and_place_are_whole() {
    let pages = Pages::new();
    for len in (0..700).chain([1440, 2000, 4000]) {
        for start in [0, 1, 7, 8, 33] {
            let data = pattern(len);
            pages.write(0, &[0xee; 4200]).unwrap();
            pages.write(start, &data).unwrap();
            let mut back = vec![0; len];
            pages.read(start, &mut back).unwrap();
            assert!(back == data, "{len} octets at {start}");
            let mut around = [0; 1];
            pages.read(start + len, &mut around).unwrap();
            assert_eq!(around, [0xee], "behind {len} octets at {start}");
            if start > 0 {
                pages.read(start - 1, &mut around).unwrap();
                assert_eq!(around, [0xee], "before {len} octets at {start}");
            }
        }
    }
}

#[test]
fn a_fault_at_any_octet_is_caught() {
    let pages = Pages::new();
    let mut back = vec![0; 2 * PAGE];
    for len in [
        1_usize, 3, 4, 7, 8, 9, 15, 16, 17, 40, 63, 64, 200, 256, 300, 1440, 4000,
    ] {
        for inside in [1, len / 2, len.saturating_sub(1)] {
            let start = PAGE - len + inside.clamp(1, len);
            let data = pattern(len);
            pages.protect_second(ProtFlags::PROT_READ);
            assert_eq!(pages.write(start, &data), Err(Fault), "{len} at {start}");
            assert_eq!(pages.read(start, &mut back[..len]), Ok(()));
            pages.protect_second(ProtFlags::PROT_NONE);
            assert_eq!(pages.write(start, &data), Err(Fault), "{len} at {start}");
            assert_eq!(pages.read(start, &mut back[..len]), Err(Fault));
            pages.protect_second(ProtFlags::PROT_READ | ProtFlags::PROT_WRITE);
            assert_eq!(pages.write(start, &data), Ok(()));
        }
    }
}

#[test]
fn atomics_change_words_and_their_faults_are_caught() {
    let pages = Pages::new();
    for offset in [0, PAGE] {
        pages.write(offset, &40_u64.to_ne_bytes()).unwrap();
        assert_eq!(pages.update(offset, |was| was + 2), Ok(40));
        assert_eq!(pages.update(offset, |was| was), Ok(42));
    }
    pages.protect_second(ProtFlags::PROT_READ);
    assert_eq!(pages.update(PAGE, |was| was + 1), Err(Fault));
    assert_eq!(pages.write(PAGE, &[0; 8]), Err(Fault));
    pages.protect_second(ProtFlags::PROT_NONE);
    assert_eq!(pages.update(PAGE, |was| was + 1), Err(Fault));
    assert_eq!(pages.update(0, |was| was + 1), Ok(42));
}

/// Several threads add to one word: none of their changes is lost.
#[test]
fn atomics_of_several_threads_add_up() {
    let pages = Pages::new();
    let at = pages.at(64).addr();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(move || {
                for _ in 0..10_000 {
                    let word = std::ptr::with_exposed_provenance_mut(at);
                    // SAFETY: it is a word of the pages, which outlive the threads.
                    unsafe { update(word, |was| was + 1) }.unwrap();
                }
            });
        }
    });
    assert_eq!(pages.update(64, |was| was), Ok(40_000));
}
