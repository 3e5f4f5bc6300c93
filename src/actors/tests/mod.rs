//! Tests of the actors. Most run on [`Stepped`], a scheduler of one thread and virtual time, which also proves that
//! actors run on more than threads.

mod lanes;
mod life;
mod links;
mod replies;
mod seam;
mod stepped;
mod threads;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::{Actor, ActorId, Addr, Cx, Exit, Flow, Reply, TimerId};

/// What actors noted, in order.
#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn note(&self, what: impl Into<String>) {
        self.0.lock().push(what.into());
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().clone()
    }
}

/// What a [`Probe`] is told to do.
enum Do {
    Answer(Reply<u32>, u32),
    /// Cancels the timer set last.
    Cancel,
    /// Keeps a reply until the probe's end.
    Keep(Reply<u32>),
    Link(Addr<Self>),
    /// Notes this, this much later.
    Later(Duration, &'static str),
    Note(&'static str),
    /// Notes each in itself, through all three lanes.
    NoteInLanes {
        control: &'static str,
        mail: &'static str,
        queue: &'static str,
    },
    Panic(&'static str),
    Stop,
}

/// Does what it is told; notes that, and its end.
struct Probe {
    log: Log,
    /// What it answers when asked after a panic; `None` panics again.
    after_panic: Option<Flow>,
    kept: Vec<Reply<u32>>,
    timer: Option<TimerId>,
}

impl Probe {
    fn new(log: &Log) -> Self {
        Self::after_panic(log, Some(Flow::Stop))
    }

    fn after_panic(log: &Log, answer: Option<Flow>) -> Self {
        Self { log: log.clone(), after_panic: answer, kept: Vec::new(), timer: None }
    }
}

impl Actor for Probe {
    type Msg = Do;

    fn handle(&mut self, msg: Do, cx: &mut Cx<'_, Do>) -> Flow {
        match msg {
            Do::Answer(reply, value) => reply.send(value).unwrap(),
            Do::Cancel => cx.cancel(self.timer.take().unwrap()),
            Do::Keep(reply) => self.kept.push(reply),
            Do::Link(other) => cx.link(&other),
            Do::Later(after, what) => self.timer = Some(cx.timer(cx.now() + after, Do::Note(what))),
            Do::Note(what) => self.log.note(what),
            Do::NoteInLanes { control, mail, queue } => {
                cx.me().queue(Do::Note(queue)).unwrap();
                cx.me().tell(Do::Note(mail)).unwrap();
                cx.me().control(Do::Note(control)).unwrap();
            }
            Do::Panic(why) => panic!("{why}"),
            Do::Stop => return Flow::Stop,
        }
        Flow::Continue
    }

    fn down(&mut self, who: ActorId, exit: &Exit, _cx: &mut Cx<'_, Do>) -> Flow {
        self.log.note(format!("{who} {exit}"));
        Flow::Continue
    }

    fn panicked(&mut self, message: &str, _cx: &mut Cx<'_, Do>) -> Flow {
        self.log.note(format!("asked after: {message}"));
        self.after_panic.expect("the probe was told to panic again")
    }

    fn waits_for(&self) -> Option<String> {
        (!self.kept.is_empty()).then(|| format!("{} replies to be due", self.kept.len()))
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.log.note("dropped");
    }
}
