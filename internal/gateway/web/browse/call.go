package browse

import (
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/packhorse-git/packhorse/internal/gateway"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// all passes each message of the response to a call to receive.
func all[R any, P interface {
	*R
	proto.Message
}](q *request, procedure string, m proto.Message, receive func(P) error) error {
	return q.v.Read(gateway.Read{Procedure: procedure, Known: q.known, Request: m, Response: P(new(R)),
		Receive: func(m proto.Message) error { return receive(m.(P)) }})
}

// one returns the only message of the response to a call.
func one[R any, P interface {
	*R
	proto.Message
}](q *request, procedure string, m proto.Message) (P, error) {
	var only P
	err := all(q, procedure, m, func(m P) error {
		only = m
		return nil
	})
	return only, err
}

// pathFields returns the fields path and raw_path of a call for a path.
func pathFields(path string) (text string, raw []byte) {
	if utf8.ValidString(path) {
		return path, nil
	}
	return "", []byte(path)
}

// in returns a path in the commit, for calls.
func (q *request) in(path string) *packhorsev1.RevisionPath {
	text, raw := pathFields(path)
	return &packhorsev1.RevisionPath{Revision: q.at.id.String(), Path: text, RawPath: raw}
}
