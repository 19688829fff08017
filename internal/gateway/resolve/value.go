package resolve

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
)

// A value in Redis is
//
//	"P1" | epoch, 16 hex digits | generation, 16 hex digits | valueBody in JSON | mark, 16 bytes
//
// The bytes before the JSON are the order. The value with the greater order, byte by byte, is newer, also if the
// repository was created again between them, because a node's generations continue to increase. The mark covers the
// question and all bytes before it. A value under another key, or a changed one, is invalid. With a secret, only its
// holders can create valid values.
const (
	magic     = "P1"
	orderSize = len(magic) + 32
	markSize  = 16
	maxValue  = 8 << 10 // bytes

	maxIncarnation = 255
)

// valueBody is the part of an answer that is not in the order. Refs are bytes, because they need not be UTF-8.
type valueBody struct {
	Incarnation string
	ID, Ref     []byte
	Type        git.ObjectType
}

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
	text, err := json.Marshal(valueBody{a.Version.Incarnation, a.ID.Raw(), []byte(a.Ref), a.Type})
	if err != nil {
		return nil, false
	}
	value = append([]byte(order(a.Version)), text...)
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
	if len(value) < orderSize+markSize || len(value) > maxValue || value[:len(magic)] != magic {
		return a, false
	}
	body, mark := value[:len(value)-markSize], value[len(value)-markSize:]
	if subtle.ConstantTimeCompare(c.mark(q, []byte(body)), []byte(mark)) != 1 {
		return a, false
	}
	const number = (orderSize - len(magic)) / 2
	epoch, epochErr := strconv.ParseUint(body[len(magic):][:number], 16, 64)
	generation, generationErr := strconv.ParseUint(body[len(magic)+number:][:number], 16, 64)
	var b valueBody
	err := errors.Join(epochErr, generationErr, json.Unmarshal([]byte(body[orderSize:]), &b))
	if err != nil || len(b.ID) != git.SHA1.Size() && len(b.ID) != git.SHA256.Size() {
		return a, false
	}
	a = node.Answer{ID: git.RawObjectID(b.ID), Type: b.Type, Ref: string(b.Ref),
		Version: git.Version{Incarnation: b.Incarnation, Epoch: epoch, Generation: generation}}
	_, typeErr := git.ParseObjectType(a.Type.String())
	_, refErr := git.ParseRefName(a.Ref)
	if typeErr != nil || refErr != nil && a.Ref != "HEAD" || a.ID.IsZero() {
		return node.Answer{}, false
	}
	return a, true
}
