package replog

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node/event"
)

// Kind is the kind of change that a record made.
type Kind string

const (
	KindCreate     Kind = "create"     // the first record of a repository
	KindPush       Kind = "push"       // refs changed, and packs were added
	KindCheckpoint Kind = "checkpoint" // the changes of refs were folded into a new checkpoint
	KindCompact    Kind = "compact"    // packs were replaced by others with the same objects, or without unreachable ones
	KindCondemn    Kind = "condemn"    // keys were condemned: they are about to be deleted
	KindClear      Kind = "clear"      // condemned keys are deleted
	KindConfigure  Kind = "configure"  // HEAD, the configuration or the quota changed
	KindRename     Kind = "rename"     // the names changed
	KindDelete     Kind = "delete"     // the repository was deleted
	KindFork       Kind = "fork"       // a fork was listed
)

// Record is the state of a repository after one change. It is complete: together with the checkpoint and the packs that
// it names, it is the repository. A record that was read or appended is not changed any more; Next makes a copy.
type Record struct {
	Number uint64 // position in the log, from 1
	Txn    string // random ID of the attempt to append this record
	Parent string // Txn of the record before; empty if Number is 1
	Kind   Kind
	At     time.Time // when it was written, by the clock of Node: only for people
	Node   string    // name of the node that wrote it: only for people
	Pushes []Push    // the pushes that this record commits

	Names        []git.RepoPath // paths of the repository, sorted; empty if it is deleted
	Renames      uint64         // number of changes of Names so far
	Head         git.RefName    // the ref that HEAD points to
	Config       []Setting      // Git configuration of the repository, in its order
	ObjectFormat git.ObjectFormat
	RequestID    string // of the caller that created the repository; empty: none
	Quota        int64  // maximum of Bytes(); zero means no limit
	Refs         Refs
	Packs        []Pack
	PushedAt     time.Time // when a push last changed refs, by the clock of its node; zero: not known
	Forks        []string  // IDs of repositories whose records may name packs of this one, sorted; at most MaxForks

	ObjectsEpoch uint64   // raised when unreachable objects were removed
	GC           uint64   // raised by each record of KindCondemn
	Condemned    []string // keys that are about to be deleted, sorted; see Pack.Key and Refs.Checkpoint
	Deleted      bool     // the repository does not exist any more

	Events *Events // of this change; nil: it has none

	// Unknown has the top-level fields of newer versions that do not have to be understood. They are kept.
	Unknown map[string][]byte
}

// Events are the events of one change.
type Events struct {
	// Number is that of the record. An older version copies the events of a record to those after it.
	Number uint64        `json:"n"`
	List   []event.Event `json:"list,omitempty"`
	Key    string        `json:"key,omitempty"` // of the object that has the list instead
}

// EventList returns the events that the record has itself.
func (r *Record) EventList() []event.Event {
	if r.Events == nil {
		return nil
	}
	return r.Events.List
}

// Push describes one push of a record, for the audit.
type Push struct {
	By   git.Text `json:"by,omitempty"` // user, empty if the caller is not authenticated
	ID   string   `json:"id"`           // ID of the request
	Refs int      `json:"refs"`         // number of refs that it changed
}

// Refs is the state of all refs: a checkpoint and the changes after it.
type Refs struct {
	Bytes int64 `json:"bytes,omitempty"` // of the checkpoint
	// Checkpoint is the key of the checkpoint, relative to the repository: "refs/28-TXN"; empty without one.
	Checkpoint string      `json:"checkpoint,omitempty"`
	Count      int         `json:"count,omitempty"` // number of refs in the checkpoint
	SHA256     Sum         `json:"sha256,omitzero"` // of the checkpoint
	Tail       []TailEntry `json:"tail,omitempty"`
}

// TailEntry has the changes of refs of one record. Entries are shared by records and never changed.
type TailEntry struct {
	Number  uint64      // the record
	Changes []RefChange // sorted by name
}

// RefChange is the change of one ref.
type RefChange struct {
	Name   git.RefName
	Old    git.ObjectID // zero if the ref was created
	New    git.ObjectID // zero if the ref was deleted
	Peeled git.ObjectID // the object that an annotated tag finally points to; zero for other objects
}

// Pack names a pack and its index in the bucket, and what was made from them.
type Pack struct {
	Bytes     int64  `json:"bytes"`           // size of the pack
	Extra     []File `json:"extra,omitempty"` // files that only save work: .rev, .bitmap, .graph, .tip-pack, .tip-idx
	From      string `json:"from,omitempty"`  // ID of the repository that has the files; empty: the record's own
	IdxBytes  int64  `json:"idx_bytes"`
	IdxSHA256 Sum    `json:"idx_sha256"`
	Key       string `json:"key"`     // relative to the repository, without the extension: "packs/pack-HASH-TXN"
	Objects   int64  `json:"objects"` // number of objects
	SHA256    Sum    `json:"sha256"`  // of the pack
	Since     uint64 `json:"since"`   // the record that added it, or the youngest of the packs that it replaces
}

// File is one file of a pack. Its key is Pack.Key + Ext.
type File struct {
	Bytes  int64  `json:"bytes"`
	Ext    string `json:"ext"` // ".pack"
	SHA256 Sum    `json:"sha256"`
}

// MaxForks is the maximum number of IDs in Record.Forks.
const MaxForks = 2000

// needForks is the feature of records with Forks or with packs of another repository.
const needForks = "fork"

// needs returns the features that a program must know to use the record.
func (r *Record) needs() []string {
	if len(r.Forks) > 0 || len(r.Lenders()) > 0 {
		return []string{needForks}
	}
	return nil
}

// Lenders returns the IDs of the other repositories that have packs of this one, in the order of the packs.
func (r *Record) Lenders() (ids []string) {
	for i := range r.Packs {
		if from := r.Packs[i].From; from != "" && !slices.Contains(ids, from) {
			ids = append(ids, from)
		}
	}
	return ids
}

// Files returns all files of the pack: the pack, its index, and the extra files.
func (p *Pack) Files() []File {
	return append([]File{{p.Bytes, ".pack", p.SHA256}, {p.IdxBytes, ".idx", p.IdxSHA256}}, p.Extra...)
}

// Name returns the name of the pack in objects/pack, without an extension: "pack-HASH".
func (p *Pack) Name() string {
	name := strings.TrimPrefix(p.Key, packPrefix)
	if i := strings.LastIndexByte(name, '-'); i > 0 {
		name = name[:i]
	}
	return name
}

// PackKey returns a key for a pack that only one attempt uses. The name is that of the file without an extension:
// "pack-HASH".
func PackKey(name, txn string) string { return packPrefix + name + "-" + txn }

// CheckpointKey returns a key for the refs after record n that only one attempt uses.
func CheckpointKey(n uint64, txn string) string {
	return fmt.Sprintf("%s%d-%s", checkpointPrefix, n, txn)
}

const (
	packPrefix       = "packs/"
	checkpointPrefix = "refs/"
)

// Endings of the tip pack of a repository and its index, which are files of one of its packs.
const (
	TipPack = ".tip-pack"
	TipIdx  = ".tip-idx"
)

// extensions are the endings of a pack's files.
var extensions = []string{".pack", ".idx", ".rev", ".bitmap", ".graph", TipPack, TipIdx}

// IsTip reports whether the file is part of a tip pack.
func (f File) IsTip() bool { return f.Ext == TipPack || f.Ext == TipIdx }

// ParseFileKey returns the key in records (Pack.Key or Refs.Checkpoint) of a file, from the file's key relative to the
// repository. ok is false if Packhorse does not write such files.
func ParseFileKey(file string) (key string, ok bool) {
	if isKey(file, checkpointPrefix) {
		return file, true
	}
	ext := path.Ext(file)
	key = strings.TrimSuffix(file, ext)
	return key, slices.Contains(extensions, ext) && isKey(key, packPrefix)
}

// FileKeys returns the keys of all files that a key in records can have. It is the inverse of ParseFileKey.
func FileKeys(key string) []string {
	if strings.HasPrefix(key, checkpointPrefix) {
		return []string{key}
	}
	files := make([]string, len(extensions))
	for i, ext := range extensions {
		files[i] = key + ext
	}
	return files
}

// Sum is a SHA-256 checksum. It is written in hexadecimal.
type Sum [32]byte

func (s Sum) String() string { return hex.EncodeToString(s[:]) }

// MarshalText implements encoding.TextMarshaler.
func (s Sum) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, s[:]), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Sum) UnmarshalText(text []byte) error {
	if len(text) != hex.EncodedLen(len(s)) || !bytes.Equal(text, bytes.ToLower(text)) {
		return hex.InvalidByteError(0)
	}
	_, err := hex.Decode(s[:], text)
	return err
}

// NewID returns a random ID of 128 bits, in lower-case base32: for a repository, or for an attempt.
func NewID() string { return strings.ToLower(rand.Text()) }

// Next returns a copy of the record with the next number and a new Txn. The caller changes it and appends it.
func (r *Record) Next(kind Kind, node string, now time.Time) *Record {
	next := *r
	next.Number, next.Txn, next.Parent = r.Number+1, NewID(), r.Txn
	next.Kind, next.Node, next.At, next.Pushes, next.Events = kind, node, now, nil, nil
	next.Names, next.Packs = slices.Clone(r.Names), slices.Clone(r.Packs)
	next.Condemned, next.Forks = slices.Clone(r.Condemned), slices.Clone(r.Forks)
	next.Refs.Tail = slices.Clone(r.Refs.Tail)
	next.Config = slices.Clone(r.Config)
	return &next
}

// Bytes returns the size of the repository's own packs, which the quota limits.
func (r *Record) Bytes() (total int64) {
	for i := range r.Packs {
		if r.Packs[i].From == "" {
			total += r.Packs[i].Bytes
		}
	}
	return total
}

// Pack returns the pack with the given key, or nil.
func (r *Record) Pack(key string) *Pack {
	for i := range r.Packs {
		if r.Packs[i].Key == key {
			return &r.Packs[i]
		}
	}
	return nil
}

func (r *Record) position() (number uint64, txn, parent string) { return r.Number, r.Txn, r.Parent }

// HasKey reports whether the record names the key of a pack or of a checkpoint.
func (r *Record) HasKey(key string) bool {
	return r.Refs.Checkpoint == key || r.Pack(key) != nil
}
