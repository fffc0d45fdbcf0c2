//! Write timeout of connections: a client that reads nothing for a while is disconnected. Hyper has
//! timeouts for reading only.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// Maximum time that a write may block because the client does not read.
pub(crate) const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// A stream whose writes fail with `TimedOut` after blocking for [`WRITE_TIMEOUT`].
pub(crate) struct WriteTimeout<S> {
    stream: S,
    until: Pin<Box<Sleep>>,
    /// Whether the last write blocked, and `until` is its deadline.
    waits: bool,
}

impl<S> WriteTimeout<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self {
            stream,
            until: Box::pin(sleep(WRITE_TIMEOUT)),
            waits: false,
        }
    }

    /// Returns the result of a write; of a blocked one `Pending`, or an error after the timeout.
    fn apply_timeout<T>(
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
            self.until.as_mut().reset(Instant::now() + WRITE_TIMEOUT);
        }
        ready!(self.until.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let tried = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.apply_timeout(context, tried)
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
        self.apply_timeout(context, tried)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UnixStream;

    use super::*;

    const MUCH: usize = 4 << 20;

    /// The paused clock of these tests advances whenever all tasks are idle.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_nothing_is_disconnected() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let before = Instant::now();
        let written = WriteTimeout::new(ours).write_all(&vec![0; MUCH]).await;
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(before.elapsed() >= WRITE_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_keeps_reading_is_never_disconnected() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let before = Instant::now();
        let reader = tokio::spawn(async move {
            let (mut read, mut buffer) = (0, vec![0; 64 << 10]);
            while read < MUCH {
                sleep(WRITE_TIMEOUT / 4).await;
                read += theirs.read(&mut buffer).await.unwrap();
            }
            read
        });
        WriteTimeout::new(ours)
            .write_all(&vec![0; MUCH])
            .await
            .unwrap();
        assert_eq!(reader.await.unwrap(), MUCH);
        assert!(before.elapsed() > WRITE_TIMEOUT);
    }
}
