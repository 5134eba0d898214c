//! Tests of the counting allocator, which this binary installs.

use weft_heap as heap;

#[global_allocator]
static ALLOCATOR: heap::Counting = heap::Counting;

/// Far more than the other tests of this binary allocate meanwhile.
const BLOCK: usize = 64 << 20;

#[test]
fn allocated_bytes_count_as_live_until_they_are_freed() {
    let before = heap::live();
    let (allocations, block) = (heap::allocations(), vec![0_u8; BLOCK]);
    assert!(heap::allocations() > allocations);
    assert!(
        heap::live() >= before + BLOCK / 2,
        "{} of {BLOCK}",
        heap::live() - before
    );
    assert!(heap::peak() >= BLOCK);
    drop(block);
    assert!(heap::live() < before + BLOCK / 2);

    heap::reset_peak();
    assert!(heap::peak() < BLOCK / 2);
    let mut growing: Vec<u8> = Vec::with_capacity(BLOCK / 4);
    growing.reserve_exact(BLOCK / 2);
    drop(growing);
    assert!(
        heap::peak() >= BLOCK / 2,
        "growing in place was not counted"
    );
}
