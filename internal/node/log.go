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

// updateAttrs returns the attributes for a push's log line: the number of changed and of refused refs, and the first
// updates. LogUpdates logs the other updates.
func updateAttrs(updates []RefUpdate) []slog.Attr {
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
