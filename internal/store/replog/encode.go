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

// wire is a record as it is in JSON. All keys of nested objects are in alphabetical order, as encoding/json sorts maps.
type wire struct {
	format, n, quota, bytes, objectsEpoch, gc, renames int64

	txn, parent, kind, at, node, head, objectFormat, requestID text

	pushes    []wirePush
	names     []text
	config    [][2]text
	refs      wireRefs
	packs     []wirePack
	condemned []text
	needs     []text
	deleted   bool
}

type wirePush struct {
	By   text  `json:"by,omitempty"`
	ID   text  `json:"id"`
	Refs int64 `json:"refs"`
}

type wireRefs struct {
	Bytes      int64      `json:"bytes,omitempty"`
	Checkpoint text       `json:"checkpoint,omitempty"`
	Count      int64      `json:"count,omitempty"`
	SHA256     *Sum       `json:"sha256,omitempty"`
	Tail       []wireTail `json:"tail,omitempty"`
}

type wireTail struct {
	N   int64               `json:"n"`
	Set map[string][]string `json:"set"` // [old, new] or [old, new, peeled]; "-" means that there is none
}

type wirePack struct {
	Bytes     int64      `json:"bytes"`
	Extra     []wireFile `json:"extra,omitempty"`
	IdxBytes  int64      `json:"idx_bytes"`
	IdxSHA256 Sum        `json:"idx_sha256"`
	Key       text       `json:"key"`
	Objects   int64      `json:"objects"`
	SHA256    Sum        `json:"sha256"`
	Since     int64      `json:"since"`
}

type wireFile struct {
	Bytes  int64 `json:"bytes"`
	Ext    text  `json:"ext"`
	SHA256 Sum   `json:"sha256"`
}

// fields maps the keys of a record's JSON object to their values in w.
func (w *wire) fields() map[string]any {
	return map[string]any{
		"format": &w.format, "n": &w.n, "txn": &w.txn, "parent": &w.parent, "kind": &w.kind, "at": &w.at, "node": &w.node,
		"pushes": &w.pushes, "names": &w.names, "head": &w.head, "config": &w.config, "object_format": &w.objectFormat,
		"request_id": &w.requestID,
		"quota":      &w.quota, "refs": &w.refs, "packs": &w.packs, "bytes": &w.bytes, "objects_epoch": &w.objectsEpoch,
		"renames": &w.renames, "gc": &w.gc, "condemned": &w.condemned, "needs": &w.needs, "deleted": &w.deleted,
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
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(object); err != nil {
		return nil, err
	}
	if b.Len() > MaxRecord {
		return nil, tooLarge(b.Len(), object)
	}
	return b.Bytes(), nil
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
	if version > format || len(needs) > 0 {
		return nil, fault.New(fault.Unavailable, "the repository needs a newer version of Packhorse: upgrade this node "+
			"(format %d, features %q)", version, needs)
	}
	if version != format {
		return nil, fmt.Errorf("invalid format %d, want %d", version, format)
	}
	for key, value := range object {
		field, ok := fields[key]
		if !ok {
			if unknown == nil {
				unknown = make(map[string][]byte)
			}
			unknown[key] = value
			continue
		}
		d := json.NewDecoder(bytes.NewReader(value))
		d.DisallowUnknownFields()
		if err := d.Decode(field); err != nil {
			return nil, fmt.Errorf("field %q: %w", key, err)
		}
	}
	return unknown, nil
}

// Encode returns the record as canonical JSON. The error is a TooLargeError if it has more than MaxRecord bytes.
func (r *Record) Encode() ([]byte, error) {
	if err := r.validate(); err != nil {
		return nil, fmt.Errorf("record %d: %w", r.Number, err)
	}
	w := wire{
		format: format, n: int64(r.Number), txn: text(r.Txn), parent: text(r.Parent), kind: text(r.Kind),
		at: text(r.At.UTC().Format(timeFormat)), node: text(r.Node), head: text(r.Head),
		objectFormat: text(r.ObjectFormat.String()), requestID: text(r.RequestID), quota: r.Quota, bytes: r.Bytes(),
		objectsEpoch: int64(r.ObjectsEpoch), gc: int64(r.GC), renames: int64(r.Renames), deleted: r.Deleted,
		condemned: convert[text](r.Condemned), needs: convert[text](r.Needs), refs: encodeRefs(&r.Refs),
	}
	for _, p := range r.Pushes {
		w.pushes = append(w.pushes, wirePush{By: text(p.By), ID: text(p.ID), Refs: int64(p.Refs)})
	}
	for _, name := range r.Names {
		w.names = append(w.names, text(name.String()))
	}
	for _, s := range r.Config {
		w.config = append(w.config, [2]text{text(s.Key), text(s.Value)})
	}
	for i := range r.Packs {
		w.packs = append(w.packs, encodePack(&r.Packs[i]))
	}
	return encodeFields(w.fields(), r.Unknown)
}

// timeFormat is RFC 3339 with milliseconds.
const timeFormat = "2006-01-02T15:04:05.000Z07:00"

func encodeRefs(r *Refs) wireRefs {
	w := wireRefs{Checkpoint: text(r.Checkpoint), Bytes: r.Bytes, Count: int64(r.Count)}
	if r.Checkpoint != "" {
		w.SHA256 = &r.SHA256
	}
	for _, entry := range r.Tail {
		set := make(map[string][]string, len(entry.Changes))
		for _, c := range entry.Changes {
			ids := []string{encodeID(c.Old), encodeID(c.New)}
			if !c.Peeled.IsZero() {
				ids = append(ids, encodeID(c.Peeled))
			}
			set[quote(string(c.Name))] = ids
		}
		w.Tail = append(w.Tail, wireTail{N: int64(entry.Number), Set: set})
	}
	return w
}

// TailBytes returns about how many bytes the tail has in JSON.
func (r *Refs) TailBytes() (bytes int) {
	for i := range r.Tail {
		for _, c := range r.Tail[i].Changes {
			name := quote(string(c.Name)) // up to four times as long, and JSON escapes it again
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

func encodePack(p *Pack) wirePack {
	w := wirePack{Bytes: p.Bytes, IdxBytes: p.IdxBytes, IdxSHA256: p.IdxSHA256, Key: text(p.Key), Objects: p.Objects,
		SHA256: p.SHA256, Since: int64(p.Since)}
	for _, f := range p.Extra {
		w.Extra = append(w.Extra, wireFile{Bytes: f.Bytes, Ext: text(f.Ext), SHA256: f.SHA256})
	}
	return w
}

// Decode reads a record. The error is fault.Unavailable if only a newer version can read it.
func Decode(body []byte) (*Record, error) {
	var w wire
	unknown, err := decodeFields(body, w.fields())
	if err != nil {
		return nil, err
	}
	r := &Record{
		Number: uint64(w.n), Txn: string(w.txn), Parent: string(w.parent), Kind: Kind(w.kind), Node: string(w.node),
		Head: git.RefName(w.head), Quota: w.quota, ObjectsEpoch: uint64(w.objectsEpoch), GC: uint64(w.gc),
		Renames:   uint64(w.renames),
		Condemned: convert[string](w.condemned), Needs: convert[string](w.needs), Deleted: w.deleted, Unknown: unknown,
	}
	if r.At, err = time.Parse(timeFormat, string(w.at)); err != nil {
		return nil, err
	}
	r.RequestID = string(w.requestID)
	if r.ObjectFormat, err = git.ParseObjectFormat(string(w.objectFormat)); err != nil {
		return nil, err
	}
	for _, p := range w.pushes {
		r.Pushes = append(r.Pushes, Push{ID: string(p.ID), By: string(p.By), Refs: int(p.Refs)})
	}
	for _, name := range w.names {
		path, err := decodePath(name)
		if err != nil {
			return nil, err
		}
		r.Names = append(r.Names, path)
	}
	for _, s := range w.config {
		r.Config = append(r.Config, Setting{Key: string(s[0]), Value: string(s[1])})
	}
	if r.Refs, err = decodeRefs(&w.refs); err != nil {
		return nil, err
	}
	for i := range w.packs {
		r.Packs = append(r.Packs, decodePack(&w.packs[i]))
	}
	if err := r.validate(); err != nil {
		return nil, err
	}
	if w.bytes != r.Bytes() {
		return nil, fmt.Errorf("bytes is %d, but the packs have %d", w.bytes, r.Bytes())
	}
	return r, nil
}

func decodeRefs(w *wireRefs) (Refs, error) {
	r := Refs{Checkpoint: string(w.Checkpoint), Bytes: w.Bytes, Count: int(w.Count)}
	if w.SHA256 != nil {
		r.SHA256 = *w.SHA256
	}
	for _, entry := range w.Tail {
		changes := make([]RefChange, 0, len(entry.Set))
		for quoted, ids := range entry.Set {
			name, err := unquote(quoted)
			if err != nil {
				return r, err
			}
			c := RefChange{Name: git.RefName(name)}
			if len(ids) < 2 || len(ids) > 3 {
				return r, fmt.Errorf("ref %q has %d object IDs, want 2 or 3", fault.Short(name), len(ids))
			}
			for i, id := range []*git.ObjectID{&c.Old, &c.New, &c.Peeled}[:len(ids)] {
				if ids[i] != "-" {
					*id, err = git.ParseObjectID(ids[i])
				}
				if err != nil || encodeID(*id) != ids[i] || i == 2 && id.IsZero() {
					return r, fmt.Errorf("ref %q: invalid object ID %.80q", fault.Short(name), ids[i])
				}
			}
			changes = append(changes, c)
		}
		slices.SortFunc(changes, func(a, b RefChange) int { return strings.Compare(string(a.Name), string(b.Name)) })
		r.Tail = append(r.Tail, TailEntry{Number: uint64(entry.N), Changes: changes})
	}
	return r, nil
}

func decodePack(w *wirePack) Pack {
	p := Pack{Key: string(w.Key), Bytes: w.Bytes, Objects: w.Objects, SHA256: w.SHA256, IdxBytes: w.IdxBytes,
		IdxSHA256: w.IdxSHA256, Since: uint64(w.Since)}
	for _, f := range w.Extra {
		p.Extra = append(p.Extra, File{Ext: string(f.Ext), Bytes: f.Bytes, SHA256: f.SHA256})
	}
	return p
}

// convert converts the strings of a list.
func convert[To, From ~string](list []From) []To {
	if len(list) == 0 {
		return nil
	}
	to := make([]To, len(list))
	for i, s := range list {
		to[i] = To(s)
	}
	return to
}
