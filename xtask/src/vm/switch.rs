//! A switch between guests: frames over Unix sockets, as QEMU's `stream` network has them.
//!
//! A frame comes with its length before it. The switch learns who is where; what is for everybody, or for somebody not
//! yet known, goes to all others. Nothing is dropped: a guest that does not keep up holds its senders up, as flow
//! control on a real wire would. The host's own network has no part in it.

use std::collections::BTreeMap;
use std::io::{BufReader, Read, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context as _, Result};

/// The longest frame that is carried: whatever a card without segmentation may send, and more.
const LONGEST: usize = 1 << 17;

/// A hardware address.
type Mac = [u8; 6];

/// A switch that works for as long as its process.
pub(crate) struct Switch {
    /// Where cards are plugged in.
    pub(crate) socket: PathBuf,
}

/// What is plugged in, and who has been heard where.
#[derive(Default)]
struct Ports {
    wires: Vec<Arc<Mutex<UnixStream>>>,
    known: Known,
}

/// Who is behind which wire.
#[derive(Default)]
struct Known(BTreeMap<Mac, usize>);

impl Switch {
    /// Serves `socket`.
    pub(crate) fn start(socket: &Path) -> Result<Self> {
        let listener = UnixListener::bind(socket)
            .with_context(|| format!("no switch at {}", socket.display()))?;
        let ports = Arc::new(Mutex::new(Ports::default()));
        thread::spawn(move || {
            for wire in listener.incoming().map_while(Result::ok) {
                let ports = Arc::clone(&ports);
                // A wire that fails is a guest that has ended.
                thread::spawn(move || plug(wire, &ports).ok());
            }
        });
        Ok(Self {
            socket: socket.to_owned(),
        })
    }
}

/// Carries what comes by `wire` until it ends.
fn plug(wire: UnixStream, ports: &Mutex<Ports>) -> Result<()> {
    let mut frames = BufReader::with_capacity(LONGEST, wire.try_clone()?);
    let own = {
        let mut ports = ports.lock().unwrap_or_else(PoisonError::into_inner);
        ports.wires.push(Arc::new(Mutex::new(wire)));
        ports.wires.len() - 1
    };
    while let Some(frame) = read(&mut frames)? {
        let ways = {
            let mut ports = ports.lock().unwrap_or_else(PoisonError::into_inner);
            let count = ports.wires.len();
            ports
                .known
                .ways(own, &frame, count)
                .into_iter()
                .map(|way| Arc::clone(&ports.wires[way]))
                .collect::<Vec<_>>()
        };
        for way in ways {
            let mut way = way.lock().unwrap_or_else(PoisonError::into_inner);
            // That one guest has ended is no reason to keep a frame from the others.
            let _ = way.write_all(&frame);
        }
    }
    Ok(())
}

impl Known {
    /// Learns who has sent `frame`, and says which of `wires` it takes.
    fn ways(&mut self, from: usize, frame: &[u8], wires: usize) -> Vec<usize> {
        let mac = |at: usize| frame.get(at..at + 6).and_then(|it| Mac::try_from(it).ok());
        let (Some(to), Some(sender)) = (mac(4), mac(10)) else {
            return Vec::new();
        };
        self.0.insert(sender, from);
        let ways = match self.0.get(&to) {
            Some(known) => *known..known + 1,
            None => 0..wires,
        };
        ways.filter(|way| *way != from).collect()
    }
}

/// The next frame with its length before it; `None` at the end, and where the length makes no sense.
fn read(from: &mut impl Read) -> Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    if from.read_exact(&mut length).is_err() {
        return Ok(None);
    }
    let bytes = usize::try_from(u32::from_be_bytes(length))?;
    if bytes > LONGEST {
        return Ok(None);
    }
    let mut frame = vec![0; 4 + bytes];
    frame[..4].copy_from_slice(&length);
    from.read_exact(&mut frame[4..])?;
    Ok(Some(frame))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(to: u8, from: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, 0, 14];
        frame.extend([to; 6]);
        frame.extend([from; 6]);
        frame.extend([8, 0]);
        frame
    }

    #[test]
    fn a_stranger_is_sought_everywhere_and_then_known() {
        let mut known = Known::default();
        assert_eq!(known.ways(0, &frame(2, 1), 3), [1, 2]);
        assert_eq!(known.ways(1, &frame(1, 2), 3), [0]);
        assert_eq!(known.ways(2, &frame(2, 3), 3), [1]);
        // What is for everybody comes back to nobody, nor does what is for a neighbour on the same wire.
        assert_eq!(known.ways(2, &frame(0xff, 3), 3), [0, 1]);
        assert_eq!(known.ways(2, &frame(3, 3), 3), [0; 0]);
        assert_eq!(known.ways(0, &[0, 0, 0, 2, 1, 1], 3), [0; 0]);
    }

    #[test]
    fn frames_are_read_whole_until_their_end() -> Result<()> {
        let bytes = [frame(1, 2), frame(3, 4), vec![0, 0]].concat();
        let mut rest = &bytes[..];
        assert_eq!(read(&mut rest)?, Some(frame(1, 2)));
        assert_eq!(read(&mut rest)?, Some(frame(3, 4)));
        assert_eq!(read(&mut rest)?, None);
        assert_eq!(read(&mut &[0xff; 8][..])?, None, "no frame is that long");
        Ok(())
    }
}
