package replog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

const (
	// MaxRecord is the maximum size of an encoded record in bytes.
	MaxRecord = 256 << 10
	// format is the version of the encoding. It changes only if older versions cannot even read Needs.
	format = 1
)

// ErrTooLarge reports that a record has more than MaxRecord bytes. Encode returns it as TooLargeError.
var ErrTooLarge = errors.New("the record is too large")

// TooLargeError is ErrTooLarge with the reason.
type TooLargeError struct {
	Bytes      int    // of the record
	Field      string // the largest field of its JSON, such as "refs" or "packs"
	FieldBytes int
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("%v: %d bytes, the maximum is %d; its largest field is %q with %d bytes", ErrTooLarge, e.Bytes,
		MaxRecord, e.Field, e.FieldBytes)
}

// Is makes errors.Is find ErrTooLarge.
func (e *TooLargeError) Is(target error) bool { return target == ErrTooLarge }

// tooLarge returns the error for an object that has too many bytes.
func tooLarge(bytes int, object map[string]any) error {
	e := &TooLargeError{Bytes: bytes}
	for key, value := range object {
		if text, err := json.Marshal(value); err == nil && len(text) > e.FieldBytes {
			e.Field, e.FieldBytes = key, len(text)
		}
	}
	return e
}

// fields maps the keys of a record's JSON object to their values. Those of version, bytes and needs are not in the
// record.
func (r *Record) fields(version, bytes *int64, needs *[]string) map[string]any {
	return map[string]any{
		"format": version, "n": &r.Number, "txn": &r.Txn, "parent": &r.Parent, "kind": (*git.Text)(&r.Kind),
		"at": (*stamp)(&r.At), "node": (*git.Text)(&r.Node), "pushes": &r.Pushes, "names": (*paths)(&r.Names),
		"head": (*git.Text)(&r.Head), "config": &r.Config, "object_format": (*formatName)(&r.ObjectFormat),
		"request_id": (*git.Text)(&r.RequestID), "quota": &r.Quota, "refs": &r.Refs, "packs": &r.Packs, "bytes": bytes,
		"objects_epoch": &r.ObjectsEpoch, "renames": &r.Renames, "gc": &r.GC, "condemned": &r.Condemned,
		"deleted": &r.Deleted, "forks": &r.Forks, "needs": needs, "events": &r.Events, "pushed_at": (*stamp)(&r.PushedAt),
	}
}

// encodeFields encodes fields as a JSON object with sorted keys. Fields that are zero or empty are left out. The object
// ends with a newline, for people who print it.
func encodeFields(fields map[string]any, unknown map[string][]byte) ([]byte, error) {
	object := make(map[string]any, len(fields)+len(unknown))
	for key, value := range fields {
		v := reflect.ValueOf(value).Elem()
		isEmpty := v.IsZero() || (v.Kind() == reflect.Slice || v.Kind() == reflect.Map) && v.Len() == 0
		if !isEmpty {
			object[key] = value
		}
	}
	for key, value := range unknown {
		object[key] = json.RawMessage(value)
	}
	text, err := marshal(object)
	if err == nil && len(text) > MaxRecord {
		err = tooLarge(len(text), object)
	}
	return text, err
}

// marshal is json.Marshal that leaves "<", ">" and "&" as they are, and adds a newline.
func marshal(value any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(value)
	return b.Bytes(), err
}

// unmarshal is json.Unmarshal that refuses unknown fields of objects.
func unmarshal(text []byte, value any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(value)
}

// decodeFields decodes a JSON object into fields. It returns the top-level fields that are not in fields. Unknown
// fields of nested objects are refused: they could not be kept.
func decodeFields(body []byte, fields map[string]any) (unknown map[string][]byte, err error) {
	if len(body) > MaxRecord {
		return nil, fmt.Errorf("%w: %d bytes, the maximum is %d", ErrTooLarge, len(body), MaxRecord)
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(body, &object); err != nil {
		return nil, err
	}
	var needs []string // first, because another format may have other types
	var version int64
	_ = json.Unmarshal(object["format"], &version)
	_ = json.Unmarshal(object["needs"], &needs)
	_, isRecord := fields["needs"]
	isUnknown := func(need string) bool { return !isRecord || need != needForks }
	if version > format || slices.ContainsFunc(needs, isUnknown) {
		return nil, fault.Wrap(fault.Unavailable, "the repository needs a newer version of Packhorse: upgrade this node",
			fmt.Errorf("%w %d, features %q", ErrNewer, version, needs))
	}
	if version != format {
		return nil, fmt.Errorf("invalid format %d, want %d", version, format)
	}
	for key, value := range object {
		switch field, isKnown := fields[key]; {
		case key == "needs" && !isKnown: // checked above
		case isKnown:
			if err := unmarshal(value, field); err != nil {
				return nil, fmt.Errorf("field %q: %w", key, err)
			}
		case unknown == nil:
			unknown = map[string][]byte{key: value}
		default:
			unknown[key] = value
		}
	}
	return unknown, nil
}

// Encode returns the record as canonical JSON. The error is a TooLargeError if it has more than MaxRecord bytes.
func (r *Record) Encode() ([]byte, error) {
	if err := r.validate(); err != nil {
		return nil, fmt.Errorf("record %d: %w", r.Number, err)
	}
	version, bytes, needs := int64(format), r.Bytes(), r.needs()
	return encodeFields(r.fields(&version, &bytes, &needs), r.Unknown)
}

// timeFormat is RFC 3339 with milliseconds.
const timeFormat = "2006-01-02T15:04:05.000Z07:00"

// stamp is a time in JSON.
type stamp time.Time

// MarshalText implements encoding.TextMarshaler.
func (t stamp) MarshalText() ([]byte, error) {
	return time.Time(t).UTC().AppendFormat(nil, timeFormat), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (t *stamp) UnmarshalText(text []byte) error {
	at, err := time.Parse(timeFormat, string(text))
	*t = stamp(at)
	return err
}

// formatName is an object format in JSON.
type formatName git.ObjectFormat

// MarshalText implements encoding.TextMarshaler.
func (f formatName) MarshalText() ([]byte, error) { return []byte(git.ObjectFormat(f).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (f *formatName) UnmarshalText(text []byte) error {
	format, err := git.ParseObjectFormat(string(text))
	*f = formatName(format)
	return err
}

// paths are names of a repository in JSON.
type paths []git.RepoPath

// MarshalJSON implements json.Marshaler.
func (p paths) MarshalJSON() ([]byte, error) {
	var names []git.Text
	for _, path := range p {
		names = append(names, git.Text(path.String()))
	}
	return marshal(names)
}

// UnmarshalJSON implements json.Unmarshaler.
func (p *paths) UnmarshalJSON(text []byte) error {
	var names []git.Text
	err := json.Unmarshal(text, &names)
	for i := 0; i < len(names) && err == nil; i++ {
		var path git.RepoPath
		path, err = decodePath(names[i])
		*p = append(*p, path)
	}
	return err
}

// MarshalJSON implements json.Marshaler.
func (s Setting) MarshalJSON() ([]byte, error) {
	return marshal([2]git.Text{git.Text(s.Key), git.Text(s.Value)})
}

// UnmarshalJSON implements json.Unmarshaler.
func (s *Setting) UnmarshalJSON(text []byte) error {
	var pair [2]git.Text
	err := json.Unmarshal(text, &pair)
	s.Key, s.Value = string(pair[0]), string(pair[1])
	return err
}

// wireTail is a TailEntry in JSON.
type wireTail struct {
	N   uint64              `json:"n"`
	Set map[string][]string `json:"set"` // [old, new] or [old, new, peeled]; "-" means that there is none
}

// MarshalJSON implements json.Marshaler.
func (e TailEntry) MarshalJSON() ([]byte, error) {
	set := make(map[string][]string, len(e.Changes))
	for _, c := range e.Changes {
		ids := []string{encodeID(c.Old), encodeID(c.New)}
		if !c.Peeled.IsZero() {
			ids = append(ids, encodeID(c.Peeled))
		}
		set[git.Quote(string(c.Name))] = ids
	}
	return marshal(wireTail{e.Number, set})
}

// UnmarshalJSON implements json.Unmarshaler.
func (e *TailEntry) UnmarshalJSON(text []byte) error {
	var w wireTail
	if err := unmarshal(text, &w); err != nil {
		return err
	}
	e.Number, e.Changes = w.N, make([]RefChange, 0, len(w.Set))
	for quoted, ids := range w.Set {
		name, err := git.Unquote(quoted)
		if err != nil {
			return err
		}
		c := RefChange{Name: git.RefName(name)}
		if len(ids) < 2 || len(ids) > 3 {
			return fmt.Errorf("ref %q has %d object IDs, want 2 or 3", fault.Short(name), len(ids))
		}
		for i, id := range []*git.ObjectID{&c.Old, &c.New, &c.Peeled}[:len(ids)] {
			if ids[i] != "-" {
				*id, err = git.ParseObjectID(ids[i])
			}
			if err != nil || encodeID(*id) != ids[i] || i == 2 && id.IsZero() {
				return fmt.Errorf("ref %q: invalid object ID %.80q", fault.Short(name), ids[i])
			}
		}
		e.Changes = append(e.Changes, c)
	}
	slices.SortFunc(e.Changes, func(a, b RefChange) int { return strings.Compare(string(a.Name), string(b.Name)) })
	return nil
}

// TailBytes returns about how many bytes the tail has in JSON.
func (r *Refs) TailBytes() (bytes int) {
	for i := range r.Tail {
		for _, c := range r.Tail[i].Changes {
			name := git.Quote(string(c.Name)) // up to four times as long, and JSON escapes it again
			bytes += len(name) + strings.Count(name, `"`) + strings.Count(name, `\`) + 16
			for _, id := range []git.ObjectID{c.Old, c.New, c.Peeled} {
				if !id.IsZero() {
					bytes += id.Format().HexSize()
				}
			}
		}
	}
	return bytes
}

func encodeID(id git.ObjectID) string {
	if id.IsZero() {
		return "-"
	}
	return id.String()
}

// Decode reads a record. The error is fault.Unavailable if only a newer version can read it.
func Decode(body []byte) (*Record, error) {
	r := &Record{}
	var version, bytes int64
	var needs []string
	var err error
	if r.Unknown, err = decodeFields(body, r.fields(&version, &bytes, &needs)); err != nil {
		return nil, err
	}
	if r.Events != nil && r.Events.Number != r.Number {
		r.Events = nil
	}
	if err := r.validate(); err != nil {
		return nil, err
	}
	if bytes != r.Bytes() {
		return nil, fmt.Errorf("bytes is %d, but the packs have %d", bytes, r.Bytes())
	}
	if !slices.Equal(needs, r.needs()) {
		return nil, fmt.Errorf("needs is %q, but the record needs %q", needs, r.needs())
	}
	return r, nil
}
