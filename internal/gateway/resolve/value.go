package resolve

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"fmt"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
)

// A value in Redis is
//
//	"P1" | epoch, 16 hex digits | generation, 16 hex digits | length and bytes of the incarnation |
//	type, 1 byte | length and bytes of the object ID | length (2 bytes) and bytes of the ref | mark, 16 bytes
//
// The bytes before the incarnation are the order. The value with the greater order, byte by byte, is newer, also if the
// repository was created again between them, because a node's generations continue to increase. The mark covers the
// question and all bytes before it. A value under another key, or a changed one, is invalid. With a secret, only its
// holders can create valid values.
const (
	magic     = "P1"
	orderSize = len(magic) + 32
	markSize  = 16
	// maxValue is the maximum length of a value in bytes.
	maxValue = orderSize + 1 + maxIncarnation + 2 + 64 + 2 + maxKept + markSize

	maxIncarnation = 255
)

// stored is a question with its answer in Redis.
type stored struct {
	question node.Question
	answer   node.Answer
}

// coder encodes and decodes values.
type coder struct{ secret []byte }

// keys returns the keys of the newest version of a repository and of the answer to a question. They are hashes, without
// any byte of a user. Keys of one repository are in one slot of a cluster.
func (c coder) keys(q node.Question) (fence, value string) {
	fence = c.fenceKey(q.Repository)
	return fence, fence + ":" + name("revision", q.Revision)
}

func (c coder) fenceKey(path git.RepoPath) string {
	return "packhorse:1:{" + name("repository", path.String()) + "}"
}

func name(of, text string) string {
	sum := sha256.Sum256([]byte(of + "\x00" + text))
	return base64.RawURLEncoding.EncodeToString(sum[:18])
}

// order returns the first bytes of a value of a version.
func order(v git.Version) string { return fmt.Sprintf("%s%016x%016x", magic, v.Epoch, v.Generation) }

// encode returns the value of an answer; ok is false if it cannot be stored.
func (c coder) encode(s stored) (value []byte, ok bool) {
	a := s.answer
	if len(a.Version.Incarnation) > maxIncarnation || len(a.Ref) > maxKept || a.ID.IsZero() {
		return nil, false
	}
	value = append(value, order(a.Version)...)
	value = append(value, byte(len(a.Version.Incarnation)))
	value = append(value, a.Version.Incarnation...)
	raw := a.ID.Raw()
	value = append(value, byte(a.Type), byte(len(raw)))
	value = append(value, raw...)
	value = binary.BigEndian.AppendUint16(value, uint16(len(a.Ref)))
	value = append(value, a.Ref...)
	return append(value, c.mark(s.question, value)...), true
}

// mark returns the mark of a question and its value.
func (c coder) mark(q node.Question, value []byte) []byte {
	h := hmac.New(sha256.New, c.secret)
	var sizes [16]byte
	binary.BigEndian.PutUint64(sizes[:], uint64(len(q.Repository.String())))
	binary.BigEndian.PutUint64(sizes[8:], uint64(len(q.Revision)))
	h.Write(sizes[:])
	h.Write([]byte(q.Repository.String()))
	h.Write([]byte(q.Revision))
	h.Write(value)
	return h.Sum(nil)[:markSize]
}

// decode parses the value of a question.
func (c coder) decode(q node.Question, value string) (a node.Answer, ok bool) {
	if len(value) < orderSize+1+3+2+markSize || len(value) > maxValue || value[:len(magic)] != magic {
		return a, false
	}
	body, mark := value[:len(value)-markSize], value[len(value)-markSize:]
	if subtle.ConstantTimeCompare(c.mark(q, []byte(body)), []byte(mark)) != 1 {
		return a, false
	}
	r := reader{rest: body[len(magic):]}
	a.Version.Epoch, a.Version.Generation = r.hex(16), r.hex(16)
	a.Version.Incarnation = r.take(int(r.byte()))
	a.Type = git.ObjectType(r.byte())
	raw := r.take(int(r.byte()))
	a.Ref = r.take(int(r.byte())<<8 | int(r.byte()))
	if r.bad || r.rest != "" || len(raw) != git.SHA1.Size() && len(raw) != git.SHA256.Size() {
		return node.Answer{}, false
	}
	a.ID = git.RawObjectID([]byte(raw))
	if _, err := git.ParseObjectType(a.Type.String()); err != nil || a.ID.IsZero() || a.Ref != "HEAD" && !safe(a.Ref) {
		return node.Answer{}, false
	}
	return a, true
}

func safe(ref string) bool {
	_, err := git.ParseRefName(ref)
	return err == nil
}

// reader reads a value from its start.
type reader struct {
	rest string
	bad  bool // it ended too early, or is not a number
}

func (r *reader) take(n int) string {
	if n > len(r.rest) {
		r.bad, n = true, 0
	}
	head := r.rest[:n]
	r.rest = r.rest[n:]
	return head
}

func (r *reader) byte() byte {
	if s := r.take(1); s != "" {
		return s[0]
	}
	return 0
}

func (r *reader) hex(digits int) (n uint64) {
	for _, c := range []byte(r.take(digits)) {
		switch {
		case '0' <= c && c <= '9':
			n = n<<4 | uint64(c-'0')
		case 'a' <= c && c <= 'f':
			n = n<<4 | uint64(c-'a'+10)
		default:
			r.bad = true
		}
	}
	return n
}
