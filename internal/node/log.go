package node

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"time"
)

// updateList is the form of ref updates in a log: an array of objects in JSON, one string in text.
type updateList []RefUpdate

// MarshalJSON is json.Marshaler's.
func (l updateList) MarshalJSON() ([]byte, error) { return json.Marshal([]RefUpdate(l)) }

// MarshalText is encoding.TextMarshaler's.
func (l updateList) MarshalText() ([]byte, error) {
	var b strings.Builder
	for i, u := range l {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s %s..%s: %s", u.Ref, u.Old, u.New, u.Result)
	}
	return []byte(b.String()), nil
}

// maxUpdateLine is the maximum size in bytes of the names and results of the updates in one log line, maxUpdates the
// maximum number of updates.
const (
	maxUpdateLine = 32 << 10
	maxUpdates    = 100
)

// firstLine returns how many of the updates fit into one log line.
func firstLine(updates []RefUpdate) int {
	size := 0
	for i, u := range updates {
		if size += len(u.Ref) + len(u.Result); i == maxUpdates || i > 0 && size > maxUpdateLine {
			return i
		}
	}
	return len(updates)
}

// UpdateAttrs returns the attributes for a push's log line: the number of changed and of refused refs, and the first
// updates. LogUpdates logs the other updates.
func UpdateAttrs(updates []RefUpdate) []slog.Attr {
	changed := 0
	for _, u := range updates {
		if u.Result == UpdateOK {
			changed++
		}
	}
	return []slog.Attr{
		slog.Int("refs_changed", changed), slog.Int("refs_refused", len(updates)-changed),
		slog.Any("updates", updateList(updates[:firstLine(updates)])),
	}
}

// Attrs returns the attributes for the log line of a fetch; none if it made no pack.
func (m *Made) Attrs() []slog.Attr {
	if m.Source == "" {
		return nil
	}
	a := []slog.Attr{slog.String("pack_source", m.Source), Milliseconds("select_ms", m.Select),
		Milliseconds("write_ms", m.Write)}
	if m.Fallback != "" {
		a = append(a, slog.String("pack_fallback", m.Fallback))
	}
	return a
}

// StoreAttrs returns the attributes for the log line of a request; none without an object store.
func (o *Outcome) StoreAttrs() []slog.Attr {
	s := &o.Stored
	if s.Record == 0 {
		return nil
	}
	a := []slog.Attr{slog.Uint64("record", s.Record), Milliseconds("look_ms", s.Look)}
	if s.Tries > 0 {
		a = append(a, Milliseconds("append_ms", s.Append), slog.Int("appends", s.Tries))
	}
	if o.Stale > 0 {
		a = append(a, slog.Int64("stale_seconds", int64(o.Stale.Seconds())))
	}
	return a
}

// MirrorAttrs returns the attributes for the log line of a request to a mirror; none for another repository.
func (o *Outcome) MirrorAttrs() []slog.Attr {
	if o.Mirror == "" {
		return nil
	}
	a := []slog.Attr{slog.String("mirror", string(o.Mirror)), Milliseconds("origin_ms", o.OriginTime)}
	if o.Stale > 0 {
		a = append(a, slog.Int64("stale_seconds", int64(o.Stale.Seconds())))
	}
	return a
}

// LFSAttrs returns the attributes for the log line of a request of Git LFS.
func (o *Outcome) LFSAttrs() []slog.Attr {
	var a []slog.Attr
	if o.Objects > 0 {
		a = append(a, slog.Uint64("objects", uint64(o.Objects)))
	}
	if o.Refused > 0 {
		a = append(a, slog.Uint64("objects_refused", uint64(o.Refused)))
	}
	if o.Key != "" {
		a = append(a, slog.String("object", o.Key))
	}
	if o.Pack != "" {
		a = append(a, slog.String("cache", o.Pack))
	}
	if o.Command == CommandLFSUpload && o.Bytes > 0 {
		a = append(a, slog.Int64("received_bytes", o.Bytes))
	}
	return a
}

// Milliseconds logs a duration as a number that can be summed.
func Milliseconds(key string, d time.Duration) slog.Attr {
	return slog.Float64(key, float64(d.Microseconds())/1000)
}

// LogUpdates logs the updates that do not fit into a push's log line, in as many lines as they need. The attributes in
// more are part of each line and identify the push.
func LogUpdates(ctx context.Context, log *slog.Logger, level slog.Level, updates []RefUpdate, more ...slog.Attr) {
	all := len(updates)
	for rest := updates[firstLine(updates):]; len(rest) > 0; {
		n := firstLine(rest)
		log.LogAttrs(ctx, level, "more updates of a push", append(more[:len(more):len(more)],
			slog.Int("first", all-len(rest)+1), slog.Int("of", all), slog.Any("updates", updateList(rest[:n])))...)
		rest = rest[n:]
	}
}
