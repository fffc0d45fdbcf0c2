//! A connection whose client must read: one that takes nothing for a while is cut off. Hyper bounds only what it waits
//! for in the other direction.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::time::{Instant, Sleep, sleep};

/// How long a client may take nothing although there is something for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The stream, and the end of the patience with its client.
pub(crate) struct Stall {
    stream: UnixStream,
    until: Pin<Box<Sleep>>,
    waits: bool,
}

impl Stall {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            until: Box::pin(sleep(PATIENCE)),
            waits: false,
        }
    }

    /// Hands on what came of a try to write; one that must wait has until the end of the patience.
    fn judge<T>(
        &mut self,
        context: &mut Context<'_>,
        tried: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if tried.is_ready() {
            self.waits = false;
            return tried;
        }
        if !self.waits {
            self.waits = true;
            self.until.as_mut().reset(Instant::now() + PATIENCE);
        }
        ready!(self.until.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Stall {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Stall {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let tried = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.judge(context, tried)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let tried = Pin::new(&mut self.stream).poll_write_vectored(context, buffers);
        self.judge(context, tried)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const MUCH: usize = 4 << 20;

    /// The clock of these tests goes on by itself when nothing else can happen.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_cut_off() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let before = Instant::now();
        let written = Stall::new(ours).write_all(&vec![0; MUCH]).await;
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(before.elapsed() >= PATIENCE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_goes_on_reading_may_take_as_long_as_it_likes() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let before = Instant::now();
        let reader = tokio::spawn(async move {
            let (mut read, mut buffer) = (0, vec![0; 64 << 10]);
            while read < MUCH {
                sleep(PATIENCE / 4).await;
                read += theirs.read(&mut buffer).await.unwrap();
            }
            read
        });
        Stall::new(ours).write_all(&vec![0; MUCH]).await.unwrap();
        assert_eq!(reader.await.unwrap(), MUCH);
        assert!(before.elapsed() > PATIENCE);
    }
}
