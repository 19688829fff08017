package protocol

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/git"
)

// RefUpdate is what became of one ref that a push named.
type RefUpdate struct {
	Ref    string       `json:"ref"` // as the client named it, which may not be a valid name
	Old    git.ObjectID `json:"old"`
	New    git.ObjectID `json:"new"`
	Result string       `json:"result"` // UpdateOK, why the ref was not changed, or UpdateUnknown
}

// Results of a RefUpdate beside git's reasons.
const (
	UpdateOK        = "ok"
	UpdateUnchanged = "not changed"
	UpdateUnknown   = "unknown" // the server could not find out
)

// Reported reports whether git's own report tells the client of a ref that was not changed. The session then ends as a successful one does.
func (o *Outcome) Reported() bool {
	return slices.ContainsFunc(o.Updates, func(u RefUpdate) bool {
		return u.Result != UpdateOK && u.Result != UpdateUnchanged && u.Result != UpdateUnknown
	})
}

// updateList is how updates stand in a log: an array of objects in JSON, one text otherwise.
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

// maxUpdateLine bounds in bytes what the names and reasons of one line's updates add up to, and maxUpdates how many there are.
const (
	maxUpdateLine = 32 << 10
	maxUpdates    = 100
)

// firstLine is how many of the updates go into one line.
func firstLine(updates []RefUpdate) int {
	size := 0
	for i, u := range updates {
		if size += len(u.Ref) + len(u.Result); i == maxUpdates || i > 0 && size > maxUpdateLine {
			return i
		}
	}
	return len(updates)
}

// UpdateAttrs are the attributes of a push's line: how many refs were changed and how many not, and the first updates. LogUpdates writes the others.
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

// LogUpdates writes the updates that a push's line has no room for, in as many lines as they need. More is in each line, to tell whose they are.
func LogUpdates(ctx context.Context, log *slog.Logger, level slog.Level, updates []RefUpdate, more ...slog.Attr) {
	all := len(updates)
	for rest := updates[firstLine(updates):]; len(rest) > 0; {
		n := firstLine(rest)
		log.LogAttrs(ctx, level, "more updates of a push", append(more[:len(more):len(more)],
			slog.Int("first", all-len(rest)+1), slog.Int("of", all), slog.Any("updates", updateList(rest[:n])))...)
		rest = rest[n:]
	}
}
