package clientaddr

import (
	"log/slog"
	"sync"
	"time"
)

// warnEvery is the time in which there is one line for each message at most.
const warnEvery = 10 * time.Second

// Warnings writes into the log what peers do wrong, from time to time: they may do so thousands of times a second. Safe
// for concurrent use.
type Warnings struct {
	log *slog.Logger
	now func() time.Time

	mu   sync.Mutex
	said map[string]*warning
}

type warning struct {
	at   time.Time
	more int // since then
}

// NewWarnings makes Warnings.
func NewWarnings(log *slog.Logger) *Warnings {
	return &Warnings{log: log, now: time.Now, said: map[string]*warning{}}
}

// Warn writes a line with a message, which is a constant, unless there was one a moment ago.
func (w *Warnings) Warn(message string, attributes ...any) {
	w.mu.Lock()
	last := w.said[message]
	if last == nil {
		last = &warning{}
		w.said[message] = last
	}
	now, more := w.now(), last.more
	due := now.Sub(last.at) >= warnEvery
	if last.more++; due {
		last.at, last.more = now, 0
	}
	w.mu.Unlock()
	if due {
		w.log.Warn(message, append(attributes, "more_since_last", more)...)
	}
}
