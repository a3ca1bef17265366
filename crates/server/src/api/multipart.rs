//! Forms with files, read as they come.
//!
//! Takes a `multipart/form-data` body and gives its fields one by one. Small fields come as text; a file's bytes come
//! piece by piece. However the body is made, no more than a little of it is in memory.

use super::{
    error::ApiError,
    extract::{unreadable, unsupported},
};
use axum::{
    body::{Body, Bytes},
    extract::{FromRequest, Request},
    http::header,
};
use futures_util::Stream;
use http_body::Body as _;
use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

/// Bytes of a field that is text.
const TEXT: usize = 4 << 10;
/// Bytes that may come without the reader getting any: the headers of a field, then.
const UNREAD: usize = 1 << 20;

/// A form that is being received.
pub(crate) struct Form {
    fields: multer::Multipart<'static>,
    unread: Arc<AtomicUsize>,
}

/// A field of a form.
pub(crate) struct Field {
    field: multer::Field<'static>,
    unread: Arc<AtomicUsize>,
}

impl<S: Send + Sync> FromRequest<S> for Form {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let kind = kind.ok_or_else(|| unsupported("the body must be multipart/form-data"))?;
        let boundary = multer::parse_boundary(kind).map_err(|error| match error {
            multer::Error::NoBoundary => ApiError::bad_request("the form's Content-Type names no boundary"),
            _ => unsupported("the body must be multipart/form-data"),
        })?;
        let unread = Arc::new(AtomicUsize::new(0));
        let pieces = Pieces { body: request.into_body(), unread: unread.clone(), rest: false };
        Ok(Self { fields: multer::Multipart::new(pieces, boundary), unread })
    }
}

impl Form {
    /// The next field. The one before must have been read or dropped.
    pub(crate) async fn next(&mut self) -> Result<Option<Field>, ApiError> {
        let field = self.fields.next_field().await.map_err(|error| fault(&error))?;
        self.unread.store(0, Ordering::Relaxed);
        Ok(field.map(|field| Field { field, unread: self.unread.clone() }))
    }
}

impl Field {
    pub(crate) fn name(&self) -> &str {
        self.field.name().unwrap_or_default()
    }

    /// The name that the client gave the file.
    pub(crate) fn file_name(&self) -> Option<&str> {
        self.field.file_name()
    }

    /// The next piece of the field's bytes.
    pub(crate) async fn piece(&mut self) -> Result<Option<Bytes>, ApiError> {
        let piece = self.field.chunk().await.map_err(|error| fault(&error))?;
        self.unread.store(0, Ordering::Relaxed);
        Ok(piece)
    }

    /// The whole field, as short text.
    pub(crate) async fn text(mut self) -> Result<String, ApiError> {
        let mut bytes = Vec::new();
        while let Some(piece) = self.piece().await? {
            bytes.extend_from_slice(&piece);
            if bytes.len() > TEXT {
                return Err(ApiError::bad_request("this field is too long").param(self.name()));
            }
        }
        String::from_utf8(bytes)
            .map_err(|_| ApiError::bad_request("this field is not UTF-8").param(self.name()))
    }
}

fn fault(error: &multer::Error) -> ApiError {
    match error {
        multer::Error::StreamReadFailed(cause) => unreadable(&**cause),
        other => ApiError::bad_request(format!("the form is broken: {other}")),
    }
}

/// The pieces of a body. After each it rests once, because the parser takes all that is ready before it gives any.
struct Pieces {
    body: Body,
    unread: Arc<AtomicUsize>,
    rest: bool,
}

impl Stream for Pieces {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if std::mem::take(&mut self.rest) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(context));
        let Some(frame) = frame else { return Poll::Ready(None) };
        let Ok(bytes) = frame.map_err(io::Error::other)?.into_data() else {
            // Trailers hold nothing for a form.
            context.waker().wake_by_ref();
            return Poll::Pending;
        };
        self.rest = true;
        let unread = self.unread.fetch_add(bytes.len(), Ordering::Relaxed);
        Poll::Ready(Some(if unread > UNREAD {
            Err(io::Error::other("the headers of a field are too long"))
        } else {
            Ok(bytes)
        }))
    }
}
