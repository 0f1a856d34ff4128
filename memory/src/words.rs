//! Copies of memory that another thread, process or NIC may be writing or reading meanwhile.
//!
//! Such memory is never seen through `&[u8]`. On x86_64 with AVX the copies are vector moves in
//! inline assembly, which is no data race for the compiler and the fast way; elsewhere they are
//! relaxed atomic words. Neither orders anything: that is the seqlock's part (`slot`).

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that a row occupies in a slab: the next multiple of a word.
#[must_use]
pub const fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(8)
}

/// Copies `out.len()` bytes from `source`, which may be written meanwhile: the result is then any
/// mixture, and the caller validates it.
///
/// # Safety
/// `source` is aligned to 8 and `padded(out.len())` bytes from it stay mapped and readable for the
/// whole call.
#[inline(always)]
pub unsafe fn copy_out(source: *const u8, out: &mut [u8]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if out.len() >= 32 && std::arch::is_x86_feature_detected!("avx") {
        // SAFETY: AVX was detected; the caller vouches for `source`, `out` is ours, and the
        // lengths are equal and at least 32.
        unsafe { vector_copy(source, out.as_mut_ptr(), out.len()) };
        return;
    }
    // SAFETY: the caller's contract.
    unsafe { words_out(source, out) };
}

/// Copies `bytes` to `target`, which may be read meanwhile.
///
/// # Safety
/// `target` is aligned to 8, `padded(bytes.len())` bytes from it stay mapped and writable for the
/// whole call, and nobody else writes them.
#[inline(always)]
pub unsafe fn copy_in(target: *mut u8, bytes: &[u8]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if bytes.len() >= 32 && std::arch::is_x86_feature_detected!("avx") {
        // SAFETY: AVX was detected; the caller vouches for `target`, `bytes` is a live slice, and
        // the lengths are equal and at least 32.
        unsafe { vector_copy(bytes.as_ptr(), target, bytes.len()) };
        return;
    }
    // SAFETY: the caller's contract.
    unsafe { words_in(target, bytes) };
}

/// Asks the processor for the cache lines of `bytes` bytes from `address`. Never faults.
#[inline(always)]
pub fn prefetch(address: *const u8, bytes: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let mut offset = 0;
        // From the line's start, so that a row that straddles one more line has that one too.
        let first = address.wrapping_sub(address.addr() & 63);
        let span = bytes + (address.addr() & 63);
        while offset < span {
            // SAFETY: a prefetch is a hint; it reads nothing and faults on no address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(first.wrapping_add(offset).cast()) };
            offset += 64;
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (address, bytes);
}

/// Copies `len >= 32` bytes by 32-byte moves, 128 a turn; the last move overlaps the one before.
///
/// # Safety
/// The processor has AVX; `len >= 32` bytes are readable at `source` and writable at `target`; the
/// two ranges do not overlap.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn vector_copy(source: *const u8, target: *mut u8, len: usize) {
    // SAFETY: reads stay in [source, source + len) and writes in [target, target + len): the
    // loops stop before `len`, the last move starts at `len - 32`. All vector registers are
    // declared clobbered, and the assembler block is a compiler barrier for memory.
    unsafe {
        std::arch::asm!(
            "cmp {rest}, 128",
            "jb 3f",
            "2:",
            "vmovdqu ymm0, ymmword ptr [{src}]",
            "vmovdqu ymm1, ymmword ptr [{src} + 32]",
            "vmovdqu ymm2, ymmword ptr [{src} + 64]",
            "vmovdqu ymm3, ymmword ptr [{src} + 96]",
            "vmovdqu ymmword ptr [{dst}], ymm0",
            "vmovdqu ymmword ptr [{dst} + 32], ymm1",
            "vmovdqu ymmword ptr [{dst} + 64], ymm2",
            "vmovdqu ymmword ptr [{dst} + 96], ymm3",
            "add {src}, 128",
            "add {dst}, 128",
            "sub {rest}, 128",
            "cmp {rest}, 128",
            "jae 2b",
            "3:",
            "cmp {rest}, 32",
            "jb 5f",
            "4:",
            "vmovdqu ymm0, ymmword ptr [{src}]",
            "vmovdqu ymmword ptr [{dst}], ymm0",
            "add {src}, 32",
            "add {dst}, 32",
            "sub {rest}, 32",
            "cmp {rest}, 32",
            "jae 4b",
            "5:",
            "test {rest}, {rest}",
            "jz 6f",
            "vmovdqu ymm0, ymmword ptr [{src} + {rest} - 32]",
            "vmovdqu ymmword ptr [{dst} + {rest} - 32], ymm0",
            "6:",
            "vzeroupper",
            src = inout(reg) source => _,
            dst = inout(reg) target => _,
            rest = inout(reg) len => _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(nostack)
        );
    }
}

/// [`copy_out`] by relaxed atomic words.
///
/// # Safety
/// As [`copy_out`].
unsafe fn words_out(source: *const u8, out: &mut [u8]) {
    let words = source.cast::<AtomicU64>();
    let mut chunks = out.chunks_exact_mut(8);
    let mut at = 0;
    for chunk in &mut chunks {
        // SAFETY: word `at` lies within the range that the caller vouches for, and is aligned.
        let word = unsafe { &*words.add(at) }.load(Ordering::Relaxed);
        chunk.copy_from_slice(&word.to_ne_bytes());
        at += 1;
    }
    let rest = chunks.into_remainder();
    if !rest.is_empty() {
        // SAFETY: the last word lies within the padded range.
        let word = unsafe { &*words.add(at) }.load(Ordering::Relaxed);
        rest.copy_from_slice(&word.to_ne_bytes()[..rest.len()]);
    }
}

/// [`copy_in`] by relaxed atomic words; what pads the last word becomes zero.
///
/// # Safety
/// As [`copy_in`].
unsafe fn words_in(target: *mut u8, bytes: &[u8]) {
    let words = target.cast::<AtomicU64>();
    for (at, chunk) in bytes.chunks(8).enumerate() {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        // SAFETY: word `at` lies within the padded range that the caller vouches for.
        unsafe { &*words.add(at) }.store(u64::from_ne_bytes(word), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both ways copy every length exactly and touch nothing beside it.
    #[test]
    fn copies_every_length() {
        let pattern: Vec<u8> = (0..1024u32).map(|i| (i * 7 + 1) as u8).collect();
        for len in (0..300).chain([511, 512, 513, 1000]) {
            let memory: Vec<AtomicU64> = (0..140).map(|_| AtomicU64::new(u64::MAX)).collect();
            let base = memory.as_ptr().cast::<u8>().cast_mut();
            for vector in [true, false] {
                let mut out = vec![0xEE; len + 8];
                // SAFETY: `memory` holds 1120 bytes, aligned to 8, alive and atomic.
                unsafe {
                    if vector {
                        copy_in(base, &pattern[..len]);
                        copy_out(base, &mut out[..len]);
                    } else {
                        words_in(base, &pattern[..len]);
                        words_out(base, &mut out[..len]);
                    }
                }
                assert_eq!(out[..len], pattern[..len], "len {len} vector {vector}");
                assert_eq!(out[len..], [0xEE; 8], "len {len}");
            }
            let after = memory[padded(len) / 8].load(Ordering::Relaxed);
            assert_eq!(after, u64::MAX, "len {len}");
        }
    }
}
