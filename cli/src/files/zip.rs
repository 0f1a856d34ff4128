//! The containers of npz files: zip with its 64-bit extension, no encryption, members stored or
//! deflated. Names, bounds and overlaps are checked before a member is looked at.

use std::collections::HashSet;
use std::ops::Range;

use super::array::Source;
use super::{FileError, listed};
use crate::limits::{ZIP_DIRECTORY_BYTES_MAX, ZIP_MEMBERS_MAX};

const LOCAL: &[u8; 4] = b"PK\x03\x04";
const CENTRAL: &[u8; 4] = b"PK\x01\x02";
const END: &[u8; 4] = b"PK\x05\x06";
const END_64: &[u8; 4] = b"PK\x06\x06";
const LOCATOR_64: &[u8; 4] = b"PK\x06\x07";

const LOCAL_BYTES: u64 = 30;
const CENTRAL_BYTES: usize = 46;
const END_BYTES: usize = 22;
const END_64_BYTES: usize = 56;
const LOCATOR_64_BYTES: u64 = 20;
/// The field's value is in the 64-bit extension.
const IN_EXTENSION: u64 = 0xFFFF_FFFF;
const EXTENSION: u16 = 1;
/// The version of the format that has the 64-bit extension.
const VERSION_64: u16 = 45;
/// 1980-01-01, as numpy writes: two exports of the same rows are the same bytes.
const DATE: u16 = 0x21;

/// How a member's bytes are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    /// As they are.
    Stored,
    /// RFC 1951.
    Deflated,
}

/// A member of a container.
#[derive(Debug, Clone)]
pub(super) struct Member {
    /// Its name.
    pub name: String,
    /// How it is kept.
    pub method: Method,
    /// Where its bytes stand in the file.
    pub span: Range<u64>,
    /// Bytes of its content.
    pub bytes: u64,
    /// CRC-32 of its content.
    pub crc: u32,
}

/// Little-endian numbers at offsets; 0 past the end, which lengths exclude beforehand.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn number(&self, at: usize, bytes: usize) -> u64 {
        let field = self.0.get(at..at + bytes).unwrap_or_default();
        field
            .iter()
            .rev()
            .fold(0, |n, &byte| n << 8 | u64::from(byte))
    }

    fn u16(&self, at: usize) -> u16 {
        self.number(at, 2) as u16
    }

    fn u32(&self, at: usize) -> u64 {
        self.number(at, 4)
    }

    fn u64(&self, at: usize) -> u64 {
        self.number(at, 8)
    }
}

/// Where the directory is and how many members it lists.
struct Directory {
    start: u64,
    bytes: u64,
    members: u64,
}

/// The members of a file, in the order of their bytes.
///
/// # Errors
/// [`FileError::Malformed`]: no zip file, bounds that do not hold, members that overlap, a name
/// that stands twice, methods that are not known.
pub(super) fn members(source: &Source) -> Result<Vec<Member>, FileError> {
    let malformed = |why: String| FileError::malformed(&source.path, "npz", why);
    let directory = directory(source)?;
    let limit = ZIP_DIRECTORY_BYTES_MAX;
    if directory.bytes > limit || directory.members > ZIP_MEMBERS_MAX {
        return Err(malformed(format!(
            "a directory of {} members in {} B is over the limit of {ZIP_MEMBERS_MAX} in {limit} B",
            directory.members, directory.bytes
        )));
    }
    let mut bytes = vec![0; directory.bytes as usize]; // bounded just now
    source.read(&mut bytes, directory.start)?;
    let (mut rest, mut found) = (&bytes[..], Vec::new());
    for _ in 0..directory.members {
        let (entry, after) = entry(rest).map_err(malformed)?;
        let member = locate(source, entry, directory.start)?;
        found.push(member);
        rest = after;
    }
    if !rest.is_empty() {
        return Err(malformed("its directory goes on after its members".into()));
    }
    let mut seen = HashSet::new();
    if let Some((_, twice)) = found.iter().find(|(_, m)| !seen.insert(m.name.as_str())) {
        return Err(malformed(format!("member '{}' stands twice", twice.name)));
    }
    found.sort_by_key(|(start, member)| (*start, member.span.end));
    for pair in found.windows(2) {
        let (before, (start, after)) = (&pair[0].1, &pair[1]);
        if *start < before.span.end {
            let names = listed([before.name.as_str(), after.name.as_str()].into_iter());
            return Err(malformed(format!("members overlap: {names}")));
        }
    }
    Ok(found.into_iter().map(|(_, member)| member).collect())
}

fn directory(source: &Source) -> Result<Directory, FileError> {
    let malformed = |why: &str| FileError::malformed(&source.path, "npz", why);
    let tail_bytes = source.bytes.min(END_BYTES as u64 + u64::from(u16::MAX));
    let tail_start = source.bytes - tail_bytes;
    let mut tail = vec![0; tail_bytes as usize];
    source.read(&mut tail, tail_start)?;
    // The comment that ends the file may hold anything: the mark counts whose comment fits.
    let is_end = |at: &usize| {
        let end = &tail[*at..];
        let comment = usize::from(Fields(end).u16(20));
        end.starts_with(END) && end.len() == END_BYTES + comment
    };
    let last = tail.len().checked_sub(END_BYTES);
    let at = last.and_then(|last| (0..=last).rev().find(is_end));
    let at = at.ok_or_else(|| malformed("it does not end as a zip file does"))?;
    let (end, end_start) = (Fields(&tail[at..]), tail_start + at as u64);
    let (mut found, mut limit) = (
        Directory {
            start: end.u32(16),
            bytes: end.u32(12),
            members: u64::from(end.u16(10)),
        },
        end_start,
    );
    let extended = found.start == IN_EXTENSION
        || found.bytes == IN_EXTENSION
        || found.members == u64::from(u16::MAX);
    if extended {
        let cut = || malformed("its 64-bit directory is not where it should be");
        let locator_start = end_start.checked_sub(LOCATOR_64_BYTES).ok_or_else(cut)?;
        let locator: [u8; LOCATOR_64_BYTES as usize] = source.read_array(locator_start)?;
        limit = Fields(&locator).u64(8);
        let fits = limit.checked_add(END_64_BYTES as u64);
        if !locator.starts_with(LOCATOR_64) || fits.is_none_or(|fits| fits > locator_start) {
            return Err(cut());
        }
        let end: [u8; END_64_BYTES] = source.read_array(limit)?;
        if !end.starts_with(END_64) {
            return Err(cut());
        }
        let end = Fields(&end);
        found = Directory {
            start: end.u64(48),
            bytes: end.u64(40),
            members: end.u64(32),
        };
    }
    if found.start.checked_add(found.bytes) != Some(limit) {
        return Err(malformed("its directory is not where it should be"));
    }
    Ok(found)
}

/// What the directory says of a member: where its local header is, and the member with an empty
/// span of its kept length.
struct Entry {
    header: u64,
    kept: u64,
    member: Member,
}

fn entry(bytes: &[u8]) -> Result<(Entry, &[u8]), String> {
    let cut = || "its directory ends within a member".to_owned();
    let fixed = Fields(bytes.get(..CENTRAL_BYTES).ok_or_else(cut)?);
    if !bytes.starts_with(CENTRAL) {
        return Err("its directory has something that is no member".into());
    }
    let lengths = [28, 30, 32].map(|at| usize::from(fixed.u16(at)));
    let rest = &bytes[CENTRAL_BYTES..];
    let (name, rest) = rest.split_at_checked(lengths[0]).ok_or_else(cut)?;
    let (extra, rest) = rest.split_at_checked(lengths[1]).ok_or_else(cut)?;
    let (_, rest) = rest.split_at_checked(lengths[2]).ok_or_else(cut)?;
    let name = std::str::from_utf8(name)
        .map_err(|_| "a member's name is not UTF-8")?
        .to_owned();
    if fixed.u16(8) & 1 != 0 {
        return Err(format!("member '{name}' is encrypted"));
    }
    let method = match fixed.u16(10) {
        0 => Method::Stored,
        8 => Method::Deflated,
        other => {
            return Err(format!(
                "member '{name}' is kept by the unknown method {other}"
            ));
        }
    };
    let [bytes, kept, header] = extended([fixed.u32(24), fixed.u32(20), fixed.u32(42)], extra)
        .ok_or_else(|| format!("member '{name}' lacks its 64-bit sizes"))?;
    let member = Member {
        name,
        method,
        span: 0..0,
        bytes,
        crc: fixed.u32(16) as u32,
    };
    Ok((
        Entry {
            header,
            kept,
            member,
        },
        rest,
    ))
}

/// Replaces the fields that are in the 64-bit extension, which has those only, in this order.
fn extended(mut fields: [u64; 3], mut extra: &[u8]) -> Option<[u64; 3]> {
    if !fields.contains(&IN_EXTENSION) {
        return Some(fields);
    }
    loop {
        let head = Fields(extra.get(..4)?);
        let body = extra.get(4..4 + usize::from(head.u16(2)))?;
        if head.u16(0) == EXTENSION {
            let mut words = body.chunks_exact(8).map(|word| Fields(word).u64(0));
            for field in fields.iter_mut().filter(|field| **field == IN_EXTENSION) {
                *field = words.next()?;
            }
            return Some(fields);
        }
        extra = &extra[4 + body.len()..];
    }
}

/// Finds the bytes of a member behind its local header. Returns where that header starts, too.
fn locate(source: &Source, entry: Entry, end: u64) -> Result<(u64, Member), FileError> {
    let Entry {
        header,
        kept,
        mut member,
    } = entry;
    let malformed = |why: &str| {
        let why = format!("member '{}' {why}", member.name);
        FileError::malformed(&source.path, "npz", why)
    };
    let outside = || malformed("is not within the file");
    let after = header
        .checked_add(LOCAL_BYTES)
        .filter(|after| *after <= end);
    let after = after.ok_or_else(outside)?;
    let local: [u8; LOCAL_BYTES as usize] = source.read_array(header)?;
    if !local.starts_with(LOCAL) {
        return Err(malformed("has no header where the directory says"));
    }
    let local = Fields(&local);
    let start = after + u64::from(local.u16(26)) + u64::from(local.u16(28));
    let stop = start.checked_add(kept).filter(|stop| *stop <= end);
    let stop = stop.ok_or_else(outside)?;
    if member.method == Method::Stored && kept != member.bytes {
        return Err(malformed("is stored in another length than its own"));
    }
    member.span = start..stop;
    Ok((header, member))
}

/// A member to be written, stored.
#[derive(Debug)]
pub(super) struct Written {
    /// Its name.
    pub name: String,
    /// Bytes of its content.
    pub bytes: u64,
    /// CRC-32 of its content.
    pub crc: u32,
}

impl Written {
    /// Bytes that its local header takes before the content.
    pub fn header_bytes(&self) -> u64 {
        LOCAL_BYTES + self.name.len() as u64 + 20
    }

    /// The local header.
    pub fn header(&self) -> Vec<u8> {
        let mut out = LOCAL.to_vec();
        out.extend_from_slice(&VERSION_64.to_le_bytes());
        self.shared_fields(&mut out, 20);
        out.extend_from_slice(self.name.as_bytes());
        extension(&mut out, &[self.bytes, self.bytes]);
        out
    }

    /// Flags to the length of the extra field: the same in both headers.
    fn shared_fields(&self, out: &mut Vec<u8>, extra: u16) {
        for half in [0, 0, 0, DATE] {
            out.extend_from_slice(&half.to_le_bytes());
        }
        out.extend_from_slice(&self.crc.to_le_bytes());
        out.extend_from_slice(&[0xFF; 8]);
        let name = u16::try_from(self.name.len()).expect("planes have short names");
        out.extend_from_slice(&name.to_le_bytes());
        out.extend_from_slice(&extra.to_le_bytes());
    }
}

fn extension(out: &mut Vec<u8>, words: &[u64]) {
    out.extend_from_slice(&EXTENSION.to_le_bytes());
    out.extend_from_slice(&(words.len() as u16 * 8).to_le_bytes());
    for word in words {
        out.extend_from_slice(&word.to_le_bytes());
    }
}

/// The end of a file whose members, local headers included, stand one after the other up to
/// `start`. Everything is written in 64 bits, whatever its size.
pub(super) fn end(members: &[Written], start: u64) -> Vec<u8> {
    let mut out = Vec::new();
    let mut header = 0u64;
    for member in members {
        out.extend_from_slice(CENTRAL);
        out.extend_from_slice(&VERSION_64.to_le_bytes());
        out.extend_from_slice(&VERSION_64.to_le_bytes());
        member.shared_fields(&mut out, 28);
        // No comment, first disk, no attributes, the offset in the extension.
        out.extend_from_slice(&[0; 10]);
        out.extend_from_slice(&[0xFF; 4]);
        out.extend_from_slice(member.name.as_bytes());
        extension(&mut out, &[member.bytes, member.bytes, header]);
        header += member.header_bytes() + member.bytes;
    }
    let directory = out.len() as u64;
    out.extend_from_slice(END_64);
    out.extend_from_slice(&(END_64_BYTES as u64 - 12).to_le_bytes());
    out.extend_from_slice(&VERSION_64.to_le_bytes());
    out.extend_from_slice(&VERSION_64.to_le_bytes());
    out.extend_from_slice(&[0; 8]);
    for word in [members.len() as u64, members.len() as u64, directory, start] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    out.extend_from_slice(LOCATOR_64);
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&(start + directory).to_le_bytes());
    out.extend_from_slice(&1u32.to_le_bytes());
    out.extend_from_slice(END);
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&[0xFF; 12]);
    out.extend_from_slice(&[0; 2]);
    out
}
