//! A counting global allocator: bytes in use now, and at the peak.
//!
//! Resident memory says little about a data structure, because allocators keep freed memory. A
//! benchmark or a leak test therefore installs the counting allocator:
//!
//! ```
//! #[global_allocator]
//! static ALLOCATOR: weft_heap::Counting = weft_heap::Counting;
//!
//! let before = weft_heap::live();
//! let pages = vec![0_u8; 1 << 20];
//! assert!(weft_heap::live() - before >= 1 << 20);
//! drop(pages);
//! ```

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

/// The system's allocator with counters.
#[derive(Debug)]
pub struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

/// Bytes allocated now.
pub fn live() -> usize {
    LIVE.load(Relaxed)
}

/// Most bytes allocated at once since the last [`reset_peak`].
pub fn peak() -> usize {
    PEAK.load(Relaxed)
}

/// Sets the peak to the bytes allocated now.
pub fn reset_peak() {
    PEAK.store(live(), Relaxed);
}

/// Number of allocations and reallocations since the process started.
pub fn allocations() -> usize {
    ALLOCATIONS.load(Relaxed)
}

fn grow(bytes: usize) {
    ALLOCATIONS.fetch_add(1, Relaxed);
    let live = LIVE.fetch_add(bytes, Relaxed) + bytes;
    PEAK.fetch_max(live, Relaxed);
}

fn shrink(bytes: usize) {
    LIVE.fetch_sub(bytes, Relaxed);
}

#[expect(
    unsafe_code,
    reason = "`GlobalAlloc` is an unsafe trait; every call is forwarded unchanged"
)]
// SAFETY: all four methods forward to `System` with the caller's own arguments, so its guarantees
// are ours; the counters neither allocate nor panic.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grow(layout.size());
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        grow(layout.size());
        // SAFETY: the caller upholds the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        shrink(layout.size());
        // SAFETY: the caller upholds the contract of `dealloc`, and all memory came from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        grow(size);
        shrink(layout.size());
        // SAFETY: the caller upholds the contract of `realloc`, and all memory came from `System`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
