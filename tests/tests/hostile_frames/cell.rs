//! A cell: the frames of one attempt, what is false about them, and who may accept them.

use std::net::IpAddr;

use e2e::is_slow;
use fastrand::Rng;

use super::net::Receiver;
use super::wire::{MARKER, Tag, marker, tagged};

/// Who may accept the frames of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// These receivers must, unless the ingress policy forbids it.
    Honest(Vec<Receiver>),
    /// These receivers must, whatever the ingress policy says.
    Published(Vec<Receiver>),
    /// These receivers may, for the named reason.
    Tolerated(&'static str, Vec<Receiver>),
    /// No receiver may: the frame claims what is not true.
    Lie(&'static str),
}

/// Name of a solicitation for an address of its receiver, which no ingress policy forbids: without
/// it, published ports of the same bridge could not be reached (decision 102).
pub(crate) const RESOLUTION: &str = "address resolution";

/// The frames of one attempt.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) name: String,
    /// The number in the marker.
    pub(crate) number: u16,
    pub(crate) frames: Vec<Vec<u8>>,
    pub(crate) standing: Standing,
    /// The source address that receivers must see, except for the world.
    pub(crate) source: Option<IpAddr>,
    /// Why no receiver accepts the frame, although the datapath may pass it.
    pub(crate) ignored: Option<&'static str>,
}

impl Cell {
    pub(crate) fn is_lie(&self) -> bool {
        matches!(self.standing, Standing::Lie(_))
    }
}

/// Returns of how many cells one is sent. An emulated machine takes minutes for a thousand.
pub(crate) fn kept() -> usize {
    if is_slow() { 12 } else { 3 }
}

/// TPIDs of VLAN tags: 802.1Q, 802.1ad, and two that Linux does not know.
const TPIDS: [u16; 4] = [0x8100, 0x88a8, 0x9100, 0x9200];
const VIDS: [u16; 4] = [0, 0, 1, 77];

/// Linux has no protocol of this type.
pub(crate) const NO_HANDLER: &str = "no receiver handles this EtherType";
const NO_VLAN: &str = "no receiver has an interface of this VLAN";

/// Collects the cells of one direction, with their numbers.
pub(crate) struct Draft {
    pub(crate) cells: Vec<Cell>,
    pub(crate) rng: Rng,
}

impl Draft {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            cells: Vec::new(),
            rng: Rng::with_seed(seed),
        }
    }

    /// Returns the marker of the next cell.
    pub(crate) fn marker(&self) -> Vec<u8> {
        marker(self.next())
    }

    fn next(&self) -> u16 {
        u16::try_from(self.cells.len()).expect("few cells")
    }

    /// Adds a cell with the marker that [`Draft::marker`] returned last.
    pub(crate) fn push(&mut self, name: String, frame: Vec<u8>, standing: Standing) -> &mut Cell {
        self.push_all(name, vec![frame], standing)
    }

    /// As [`Draft::push`], with several frames.
    pub(crate) fn push_all(
        &mut self,
        name: String,
        frames: Vec<Vec<u8>>,
        standing: Standing,
    ) -> &mut Cell {
        let number = self.next();
        self.cells.push(Cell {
            name,
            number,
            frames,
            standing,
            source: None,
            ignored: None,
        });
        self.cells.last_mut().expect("it has just been added")
    }

    /// Keeps the honest cells, and one of [`kept`] others.
    pub(crate) fn thin(&mut self) {
        let (rng, kept) = (&mut self.rng, kept());
        self.cells.retain(|cell| {
            let is_control = matches!(cell.standing, Standing::Honest(_) | Standing::Published(_));
            is_control || rng.usize(0..kept) == 0
        });
    }

    /// Adds each cell once more behind a random stack of tags.
    pub(crate) fn wrap(&mut self) {
        for index in 0..self.cells.len() {
            let stack = self.stack();
            let cell = self.cells[index].clone();
            let number = self.next();
            let frames = cell
                .frames
                .iter()
                .map(|frame| renumbered(&tagged(frame, &stack), cell.number, number))
                .collect();
            let standing = behind(&stack, cell.standing);
            let names: Vec<_> = stack
                .iter()
                .map(|tag| format!("{:04x} VID {}", tag.tpid, tag.vid))
                .collect();
            let name = format!("{} behind [{}]", cell.name, names.join(", "));
            let wrapped = self.push_all(name, frames, standing);
            wrapped.source = cell.source;
            wrapped.ignored = ignored_behind(&stack).or(cell.ignored);
        }
    }

    /// Returns one to three tags, mostly those that Linux removes.
    fn stack(&mut self) -> Vec<Tag> {
        (0..self.rng.usize(1..=3))
            .map(|_| Tag {
                tpid: if self.rng.u8(0..4) == 0 {
                    TPIDS[self.rng.usize(0..TPIDS.len())]
                } else {
                    TPIDS[self.rng.usize(0..2)]
                },
                vid: if self.rng.u8(0..3) == 0 {
                    VIDS[self.rng.usize(0..VIDS.len())]
                } else {
                    0
                },
            })
            .collect()
    }
}

/// Returns whether Linux removes the tag and handles what is behind it, without an interface of the
/// VLAN.
fn is_transparent(tag: Tag) -> bool {
    TPIDS[..2].contains(&tag.tpid) && tag.vid == 0
}

fn ignored_behind(stack: &[Tag]) -> Option<&'static str> {
    let opaque = stack.iter().find(|tag| !is_transparent(**tag))?;
    Some(if TPIDS[..2].contains(&opaque.tpid) {
        NO_VLAN
    } else {
        NO_HANDLER
    })
}

/// Returns the standing of a cell behind tags. One priority tag changes nothing (decision 70); what
/// is behind two is not checked, so no frame may get through.
fn behind(stack: &[Tag], standing: Standing) -> Standing {
    match standing {
        Standing::Lie(why) => Standing::Lie(why),
        _ if stack.len() > 1 => Standing::Lie("two tags"),
        _ if ignored_behind(stack).is_some() => Standing::Tolerated("a VLAN", Vec::new()),
        Standing::Published(mut to) if !stack.is_empty() => {
            to.push(Receiver::Node);
            Standing::Tolerated("a tagged frame, which is not translated", to)
        }
        Standing::Honest(_) | Standing::Published(_) | Standing::Tolerated(..) => standing,
    }
}

/// Replaces the marker of one cell by that of another. Checksums stay right.
fn renumbered(frame: &[u8], from: u16, to: u16) -> Vec<u8> {
    let (old, new) = (marker(from), marker(to));
    let mut frame = frame.to_vec();
    let starts: Vec<_> = frame
        .windows(MARKER)
        .enumerate()
        .filter(|(_, window)| *window == old)
        .map(|(at, _)| at)
        .collect();
    for at in starts {
        frame[at..at + MARKER].copy_from_slice(&new);
    }
    frame
}
