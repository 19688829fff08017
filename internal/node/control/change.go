package control

import (
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/edit"
	"github.com/packhorse-git/packhorse/internal/node/write"
	"github.com/packhorse-git/packhorse/internal/proto/internalv1"
	packhorsev1 "github.com/packhorse-git/packhorse/proto/packhorse/v1"
)

// Limits of push options, as in pushes.
const (
	maxOptions = 100
	maxOption  = 4 << 10 // bytes
)

// changeOf returns the part of a change that all requests of changes have. Without an actor the caller is the pusher.
func changeOf(r interface {
	GetActor() *packhorsev1.Actor
	GetPushOptions() []string
	GetDryRun() bool
}, caller string) (write.Change, error) {
	pusher, err := pusherOf(&internalv1.Pusher{Name: r.GetActor().GetName(), Address: r.GetActor().GetAddress(),
		Rules: r.GetActor().GetRules()})
	if err != nil {
		return write.Change{}, fault.InField("actor", err)
	}
	if by, err := pusherOf(&internalv1.Pusher{Name: caller}); err == nil && pusher.Name == "" {
		pusher.Name = by.Name
	}
	options := r.GetPushOptions()
	if len(options) > maxOptions {
		return write.Change{}, fault.InField("push_options", fault.New(fault.Invalid, "got %d, the maximum is %d",
			len(options), maxOptions))
	}
	for _, o := range options {
		if len(o) > maxOption || strings.ContainsFunc(o, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return write.Change{}, fault.InField("push_options", fault.New(fault.Invalid,
				"%.80q has more than %d bytes, or a control character", o, maxOption))
		}
	}
	return write.Change{Pusher: pusher, Options: options, DryRun: r.GetDryRun()}, nil
}

// commitRequest is a request that makes commits.
type commitRequest interface {
	proto.Message
	GetAuthor() *packhorsev1.Author
	GetCommitter() *packhorsev1.Author
	GetMessage() string
	GetSign() bool
	GetIdempotencyKey() string
}

// headerOf returns the header of the commits of a request. pusher is that of changeOf.
func (s *Server) headerOf(r commitRequest, pusher node.Pusher) (edit.Header, error) {
	h := edit.Header{}
	person := func(a *packhorsev1.Author) edit.Person {
		return edit.Person{Name: a.GetName(), Email: a.GetEmail(), Date: a.GetDate(), Raw: a.GetRaw()}
	}
	var err error
	h.Author, h.Committer, err = edit.Lines(person(r.GetAuthor()), person(r.GetCommitter()), pusher, time.Now())
	if err != nil {
		return h, err
	}
	var message, headers []byte
	if raw, ok := r.(interface {
		GetRawMessage() []byte
		GetHeaders() []byte
	}); ok {
		message, headers = raw.GetRawMessage(), raw.GetHeaders()
	}
	if h.Message, err = edit.CheckMessage(r.GetMessage(), message); err != nil {
		return h, err
	}
	if h.Extra, err = edit.CheckExtra(headers); err != nil {
		return h, err
	}
	if r.GetSign() {
		if h.Signer = s.Node.Signer(); h.Signer == nil {
			return h, fault.InField("sign", fault.New(fault.Invalid, "this server has no key: set push.signing_key"))
		}
	}
	if r.GetIdempotencyKey() != "" { // contentOf is slow
		h.Key, err = edit.NewKey(r.GetIdempotencyKey(), contentOf(r))
	}
	return h, err
}

// contentOf returns a request without what a retry may have otherwise: the user's address and rules.
func contentOf(r proto.Message) []byte {
	r = proto.Clone(r)
	if by, ok := r.(interface{ GetActor() *packhorsev1.Actor }); ok && by.GetActor() != nil {
		by.GetActor().Address, by.GetActor().Rules = "", nil
	}
	b, _ := proto.MarshalOptions{Deterministic: true}.Marshal(r) // it came as a message
	return b
}

// targetOf returns the branch that a request changes. The start of a new branch is not resolved.
func targetOf(r interface {
	GetBranch() string
	GetCreate() bool
	GetExpectedHead() string
	GetStart() string
}) (edit.Target, error) {
	t := edit.Target{Field: "branch", Create: r.GetCreate()}
	var err error
	if t.Branch, err = edit.ParseBranch(r.GetBranch()); err != nil {
		return t, fault.InField("branch", err)
	}
	if r.GetStart() != "" && !t.Create {
		return t, fault.InField("start", fault.New(fault.Invalid, "it is only used with create"))
	}
	t.Expected, err = expectedID("expected_head", r.GetExpectedHead())
	if err == nil && t.Create && !t.Expected.IsZero() {
		err = fault.InField("expected_head", fault.New(fault.Invalid, "a branch to create has no commit"))
	}
	return t, err
}

// expectedID parses an object ID; zero if it is empty.
func expectedID(field, text string) (git.ObjectID, error) {
	if text == "" {
		return git.ObjectID{}, nil
	}
	id, err := commitID(text)
	return id, fault.InField(field, err)
}
