//! Computes the layout of a model before it is written: the place of each part in its files.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::sync::Arc;

use prost::Message;

use super::data::{Data, write_at};
use super::digest::Pending;
use super::element::DataType;
use super::external_data::Span;
use super::proto::{DataLocation, GraphProto, ModelProto, TensorProto};
use super::transfer::Transfer;
use super::walk::{self, Visited};
use super::{Model, sink, tensor};
use crate::error::{Error, Result};
use crate::onnx::placeholders::Gaps;

/// The alignment of offsets in a data file, so that tensors can be mapped into memory.
pub(super) const ALIGNMENT: u64 = 4096;

/// The entries of external data that describe the old data file, and that new entries replace.
const KNOWN_ENTRIES: [&str; 5] = ["location", "offset", "length", "checksum", "basepath"];

/// The place of a model's weights.
#[derive(Clone, Copy)]
pub(super) enum Storage<'l> {
    /// In the message, except for elements in other files, which stay in these files.
    AsItIs,
    /// All elements in the message.
    Inside,
    /// Initializers of at least `threshold` bytes in a data file, to which the message refers by
    /// `location`.
    Beside { location: &'l str, threshold: usize },
}

/// The encoded message of a model with gaps, the data that fills the gaps, and the contents of the
/// data file.
pub(super) struct Layout {
    /// The message, with zeros for elements that are not in memory.
    message: ModelProto,
    /// The data that replace the zeros of `message`.
    gaps: Gaps,
    /// The digest to write into the metadata.
    pending: Option<Pending>,
    weights: Vec<(u64, Data)>,
    /// The length of the data file in bytes.
    end: u64,
}

impl Layout {
    /// Computes the layout of a model whose elements are stored as `storage` says.
    ///
    /// # Errors
    /// If the data of a tensor does not exist, or if a reference cannot be rewritten because it has
    /// an unknown entry.
    pub(super) fn new(model: &Model, storage: Storage) -> Result<Self> {
        let mut message = model.proto.clone();
        let (mut longest, mut count) = (0, 0);
        walk::parts(&mut message, &mut |part| {
            if let Visited::Initializer(tensor) | Visited::Tensor(tensor) = part
                && (tensor::is_held(tensor) || tensor.is_external())
            {
                longest = longest.max(model.externals.data(tensor).map_or(0, |data| data.len()));
                count += 1;
            }
            Ok(())
        })?;
        let mut laying = Laying {
            model,
            storage,
            gaps: Gaps::new(longest, count),
            weights: vec![],
            end: 0,
            copied: HashMap::new(),
        };
        walk::parts(&mut message, &mut |part| match part {
            Visited::Graph(_) => Ok(()),
            Visited::Initializer(tensor) => laying.initializer(tensor),
            Visited::Tensor(tensor) => laying.other(tensor),
        })?;
        let Laying {
            gaps, weights, end, ..
        } = laying;
        Ok(Self {
            message,
            gaps,
            pending: model.pending.clone(),
            weights,
            end,
        })
    }

    /// The length of the message in bytes.
    pub(super) fn message_bytes(&self) -> usize {
        self.message.encoded_len()
    }

    /// The length of the data file in bytes.
    pub(super) fn weight_bytes(&self) -> u64 {
        self.end
    }

    /// Whether the data file has any contents.
    pub(super) fn has_weights(&self) -> bool {
        !self.weights.is_empty()
    }

    /// The contents of the data file, in order: each tensor's data with its offset.
    pub(super) fn weights(&self) -> impl Iterator<Item = (u64, Data)> {
        self.weights.iter().cloned()
    }

    /// Writes the message into a file, and returns the transfers that fill its gaps. The digest may
    /// not be known yet, so [`Layout::write_digest`] writes it later.
    ///
    /// # Errors
    /// If elements cannot be read, or the file cannot be written.
    pub(super) fn write_file<'f>(&self, file: &'f File) -> io::Result<Vec<Transfer<'f>>> {
        sink::write_file(&self.message, &self.gaps, file)
    }

    /// Writes the digest over the zeros that the message has for it.
    ///
    /// # Errors
    /// If the digest cannot be computed, or the file cannot be written.
    pub(super) fn write_digest(&self, file: &File) -> io::Result<()> {
        let Some(pending) = &self.pending else {
            return Ok(());
        };
        let place = pending.place(&self.message);
        place.map_or(Ok(()), |place| {
            write_at(file, pending.digest()?.as_bytes(), place)
        })
    }

    /// Writes the message with its elements.
    ///
    /// # Errors
    /// If elements cannot be read, or the writer fails.
    pub(super) fn write_message(&mut self, out: &mut impl Write) -> io::Result<()> {
        self.settle()?;
        sink::write_message(&self.message, &self.gaps, out)
    }

    /// Writes the message into a buffer of its exact length, on all cores.
    ///
    /// # Errors
    /// If elements cannot be read, or if the buffer has another length.
    pub(super) fn fill_message(&mut self, room: &mut [MaybeUninit<u8>]) -> io::Result<()> {
        self.settle()?;
        sink::fill(&self.message, &self.gaps, room)
    }

    /// Writes the digest into the message.
    fn settle(&mut self) -> io::Result<()> {
        self.pending
            .take()
            .map_or(Ok(()), |pending| pending.settle(&mut self.message))
    }

    /// Splits the message into parts, each of which has initializers of about `room` bytes in
    /// total. The metadata is in the last part, because the digest that it contains is known only
    /// then.
    pub(super) fn parts(self, room: usize) -> impl Iterator<Item = MessagePart> {
        let Self {
            mut message,
            gaps,
            pending,
            ..
        } = self;
        let gaps = Arc::new(gaps);
        let initializers = message
            .graph
            .as_mut()
            .map(|graph| std::mem::take(&mut graph.initializer));
        let mut left = initializers.unwrap_or_default().into_iter().peekable();
        let others = std::iter::from_fn(move || {
            let (mut initializer, mut bytes) = (vec![left.next()?], 0);
            while let Some(tensor) = left.peek() {
                bytes += initializer.last().map_or(0, Message::encoded_len);
                if bytes + tensor.encoded_len() > room {
                    break;
                }
                initializer.extend(left.next());
            }
            let graph = GraphProto {
                initializer,
                ..GraphProto::default()
            };
            Some(ModelProto {
                graph: Some(graph),
                ..ModelProto::default()
            })
        });
        let parts = others
            .map(|message| (message, None))
            .chain(std::iter::once((message, pending)));
        parts.map(move |(message, pending)| MessagePart {
            message,
            gaps: gaps.clone(),
            pending,
        })
    }

    /// Writes the contents of the data file.
    ///
    /// # Errors
    /// If elements cannot be read, or the writer fails.
    pub(super) fn write_weights(&self, out: &mut impl Write) -> io::Result<()> {
        let mut position = 0;
        for (offset, data) in &self.weights {
            out.write_all(&vec![0; (offset - position) as usize])?;
            sink::write_data(data, out)?;
            position = offset + data.len() as u64;
        }
        Ok(())
    }
}

/// A part of a model: a message that is merged with the messages of the other parts.
pub struct MessagePart {
    message: ModelProto,
    gaps: Arc<Gaps>,
    pending: Option<Pending>,
}

impl MessagePart {
    /// The length of the message in bytes.
    pub fn message_bytes(&self) -> usize {
        self.message.encoded_len()
    }

    /// Writes the message. Its elements are only now read or computed.
    ///
    /// # Errors
    /// If elements cannot be read, or the writer fails.
    pub fn to_writer(&self, out: &mut impl Write) -> io::Result<()> {
        sink::write_message(&*self.settled()?, &self.gaps, out)
    }

    /// Like [`MessagePart::to_writer`], but writes on all cores into a buffer of
    /// [`MessagePart::message_bytes`] bytes.
    ///
    /// # Errors
    /// If elements cannot be read, or if the buffer has another length.
    pub fn fill(&self, room: &mut [MaybeUninit<u8>]) -> io::Result<()> {
        sink::fill(&*self.settled()?, &self.gaps, room)
    }

    /// The message with its digest.
    fn settled(&self) -> io::Result<Cow<'_, ModelProto>> {
        let Some(pending) = &self.pending else {
            return Ok(Cow::Borrowed(&self.message));
        };
        let mut message = self.message.clone();
        pending.settle(&mut message)?;
        Ok(Cow::Owned(message))
    }
}

struct Laying<'m> {
    model: &'m Model,
    storage: Storage<'m>,
    gaps: Gaps,
    weights: Vec<(u64, Data)>,
    end: u64,
    /// The spans that are copied from the model's data files, with their new offsets. Tensors that
    /// share bytes in the old file share them in the new one.
    copied: HashMap<Span, u64>,
}

impl Laying<'_> {
    fn initializer(&mut self, tensor: &mut TensorProto) -> Result<()> {
        let Storage::Beside {
            location,
            threshold,
        } = self.storage
        else {
            return self.other(tensor);
        };
        if !is_inside(tensor, threshold) {
            return self.other(tensor);
        }
        let data = match tensor::is_held(tensor) {
            true => self.model.externals.release(tensor)?,
            false => Data::Here(tensor.raw_data.take().unwrap_or_default()),
        };
        self.place(tensor, location, data);
        Ok(())
    }

    /// Lays out a tensor that `Laying::initializer` does not move into the data file. If the
    /// model holds its elements, they fill a gap of the message. External elements stay or move, as
    /// `storage` says.
    fn other(&mut self, tensor: &mut TensorProto) -> Result<()> {
        let externals = &self.model.externals;
        if tensor::is_held(tensor) {
            let data = externals.release(tensor)?;
            self.gaps.fill(tensor, data);
        }
        if !tensor.is_external() {
            return Ok(());
        }
        match self.storage {
            Storage::AsItIs => {}
            Storage::Inside => {
                let data = externals.data(tensor)?;
                tensor::clear(tensor);
                self.gaps.fill(tensor, data);
            }
            Storage::Beside { location, .. } => {
                if let Some(entry) = tensor
                    .external_data
                    .iter()
                    .find(|entry| !KNOWN_ENTRIES.contains(&entry.key()))
                {
                    return Err(Error::ExternalData {
                        file: self.model.file(),
                        tensor: tensor.name().to_owned(),
                        reason: format!("the meaning of its entry `{}` is unknown", entry.key()),
                    });
                }
                let span = externals.span(tensor)?;
                match self.copied.get(&span) {
                    Some(&offset) => refer(
                        tensor,
                        Span {
                            location: location.to_owned(),
                            offset,
                            ..span
                        },
                    ),
                    None => {
                        let offset = self.place(tensor, location, externals.data(tensor)?);
                        self.copied.insert(span, offset);
                    }
                }
            }
        }
        Ok(())
    }

    /// Appends data to the data file, and lets the tensor refer to these data. Returns their
    /// offset.
    fn place(&mut self, tensor: &mut TensorProto, location: &str, data: Data) -> u64 {
        let offset = self.end.next_multiple_of(ALIGNMENT);
        let length = data.len();
        self.end = offset + length as u64;
        self.weights.push((offset, data));
        refer(
            tensor,
            Span {
                location: location.to_owned(),
                offset,
                length,
            },
        );
        offset
    }
}

/// Lets a tensor refer to bytes of the data file.
fn refer(tensor: &mut TensorProto, span: Span) {
    tensor.external_data = span.entries();
    tensor.data_location = Some(DataLocation::External.into());
}

/// Tensors of int32 or int64 with fewer bytes stay in the message. Engines read shapes, axes and
/// similar constants while they load a model, before they open the data file.
const LEAST_INTEGERS: usize = 1024;

/// Tensors of other types with fewer bytes stay in the message, because engines read the scales of
/// a Resize early too.
const LEAST_FLOATS: usize = 64;

/// Whether an initializer belongs into a data file: its elements are not in another file, and have
/// at least `threshold` bytes and the minimum number of bytes for their type.
pub(super) fn is_inside(tensor: &TensorProto, threshold: usize) -> bool {
    let threshold = match DataType::from_code(tensor.data_type()) {
        Some(DataType::Int32 | DataType::Int64) => threshold.max(LEAST_INTEGERS),
        _ => threshold.max(LEAST_FLOATS),
    };
    let inline = tensor
        .raw_data
        .as_ref()
        .is_some_and(|bytes| bytes.len() >= threshold);
    let held =
        || tensor::is_held(tensor) && tensor::byte_size(tensor).is_ok_and(|size| size >= threshold);
    !tensor.is_external() && (inline || held())
}
