package receivepack

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/node"
)

// Reasons why a push, or a part of it, failed: values of the metrics' label and of the log's field.
const (
	reasonHook       = "hook"       // a hook, a webhook or the check of borrowed objects refused it
	reasonFsck       = "fsck"       // an object failed a check
	reasonPolicy     = "policy"     // the repository's configuration refuses it, or a ref's name does
	reasonConflict   = "conflict"   // the ref had another value, or is in another ref's way
	reasonTooLarge   = "too_large"  // the pack, or one of its objects
	reasonIncomplete = "incomplete" // objects are missing that the new refs need
	reasonDamaged    = "damaged"    // the pack or the request cannot be read
	reasonDisabled   = "disabled"   // the server or the repository takes no pushes
	reasonBusy       = "busy"       // a limit on simultaneous work was reached
	reasonTimeout    = "timeout"    // a time limit ran out
	reasonCancelled  = "cancelled"  // the client went away
	reasonDiskFull   = "disk_full"  // the file system or a quota
	reasonPermission = "permission" // the server may not write to the repository: wrong owner or mode
	reasonReadOnly   = "read_only"  // the file system is mounted read-only
	reasonMemory     = "memory"     // git ran out of memory
	reasonStorage    = "storage"    // the disk or the repository is damaged
	reasonInternal   = "internal"   // any other fault of the server
)

// reasons are all of them, for the metrics.
var reasons = []string{
	reasonHook, reasonFsck, reasonPolicy, reasonConflict, reasonTooLarge, reasonIncomplete, reasonDamaged, reasonDisabled, reasonBusy, reasonTimeout,
	reasonCancelled, reasonDiskFull, reasonPermission, reasonReadOnly, reasonMemory, reasonStorage, reasonInternal,
}

// report is what git says became of a push (gitprotocol-pack(5), "Report Status").
type report struct {
	unpack  string              // "ok", or why nothing was unpacked; "": the report has no such line
	refused map[string]string   // why a ref was not changed
	changed map[string][]result // by the ref that was asked for, what was changed
	whole   bool                // it ends with a flush packet
}

// result is what a report says of a ref that was changed: a proc-receive hook may have changed another one, or from or to something else.
type result struct{ ref, old, new string } // "": as was asked

// of is what became of an update that was asked for.
func (r result) of(u Update, format git.ObjectFormat) Update {
	if ref, err := git.ParseRefName(r.ref); err == nil {
		u.Ref = ref
	}
	if id, err := git.ParseObjectID(r.old); err == nil && id.Format() == format {
		u.Old = id
	}
	if id, err := git.ParseObjectID(r.new); err == nil && id.Format() == format {
		u.New = id
	}
	return u
}

// readReport reads as much of a report as there is.
func readReport(b []byte) report {
	rep := report{refused: make(map[string]string), changed: make(map[string][]result)}
	packets := pktline.NewReader(bytes.NewReader(b))
	last := "" // that options are about
	for {
		kind, line, err := packets.Line()
		if err != nil {
			return rep
		}
		if kind != pktline.Data {
			rep.whole = true
			return rep
		}
		word, rest, _ := strings.Cut(string(line), " ")
		switch word {
		case "unpack":
			rep.unpack = rest
		case "ok":
			last = rest
			rep.changed[last] = append(rep.changed[last], result{})
		case "ng":
			name, why, _ := strings.Cut(rest, " ")
			last, rep.refused[name] = "", cmp.Or(why, "refused")
		case "option":
			if of := rep.changed[last]; len(of) > 0 {
				of[len(of)-1].option(rest)
			}
		}
	}
}

func (r *result) option(text string) {
	switch name, value, _ := strings.Cut(text, " "); name {
	case "refname":
		r.ref = value
	case "old-oid":
		r.old = value
	case "new-oid":
		r.new = value
	}
}

// account notes what became of each ref. Done are the updates that came to be, if that is known.
func (p *pushing) account(done []Update, known bool) {
	changed := make(map[git.RefName]bool, len(done))
	for _, u := range done {
		changed[u.Ref] = true
	}
	list := make([]node.RefUpdate, 0, len(p.request.commands))
	for _, c := range p.request.commands {
		u := node.RefUpdate{Ref: c.name, Old: c.old, New: c.new}
		why, refused := p.report.refused[c.name]
		switch {
		case known && len(p.report.changed[c.name]) > 0:
			for _, r := range p.report.changed[c.name] {
				is := r.of(Update{Ref: git.RefName(c.name), Old: c.old, New: c.new}, p.target.Format)
				list = append(list, node.RefUpdate{Ref: string(is.Ref), Old: is.Old, New: is.New, Result: node.UpdateOK})
			}
			continue
		case changed[git.RefName(c.name)]:
			u.Result = node.UpdateOK
		case refused:
			u.Result = clean(why, maxReason)
		case known:
			u.Result = node.UpdateUnchanged
		default:
			u.Result = node.UpdateUnknown
		}
		list = append(list, u)
	}
	p.outcome.Updates = list
}

// maxReason bounds in bytes what is kept of git's reason for a ref.
const maxReason = 200

// clean bounds a text and takes control characters out of it.
func clean(s string, limit int) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s[:min(len(s), limit)])
}

// refusal is the error of a push whose report says that not all of it was done, and the reason. The client has it in the report.
func (p *pushing) refusal() (reason string, err error) {
	ref, why, failed := "", "", 0
	for _, u := range p.outcome.Updates {
		if u.Result == node.UpdateOK {
			continue
		}
		if failed++; failed == 1 {
			ref, why = u.Ref, u.Result
		}
	}
	unpacked := p.report.unpack == "" || p.report.unpack == "ok"
	if failed == 0 && unpacked {
		return "", nil
	}
	said := p.complaints.text()
	if p.report.unpack == noQuarantine {
		said = cmp.Or(said, p.whyNoQuarantine())
	}
	reason, kind := classify(p.report.unpack, why, said)
	if reason == reasonHook && p.declined != nil {
		said = p.declined.Error()
		switch k := fault.KindOf(p.declined); k {
		case fault.Unavailable, fault.Deadline, fault.Corrupt, fault.Exhausted: // nobody refused: who decides could not
			kind = k
		}
	}
	message := "the push was refused: "
	switch {
	case !unpacked:
		message += "unpack: " + clean(p.report.unpack, maxReason)
	case failed == 1:
		message += ref + ": " + why
	default:
		message += strconv.Itoa(failed) + " refs, the first is " + ref + ": " + why
	}
	if said != "" {
		return reason, fault.Wrap(kind, message, errors.New(said))
	}
	return reason, fault.New(kind, "%s", message)
}

// noQuarantine is what git's report says where it cannot write to the repository at all. It does not say why.
const noQuarantine = "unable to create temporary object directory"

// whyNoQuarantine tries what git has tried, to learn the cause.
func (p *pushing) whyNoQuarantine() string {
	dir, err := os.MkdirTemp(filepath.Join(p.target.Common, "objects"), "tmp_objdir-incoming-")
	if err == nil {
		_ = os.Remove(dir)
		return ""
	}
	if at, ok := errors.AsType[*fs.PathError](err); ok { // without the path
		err = at.Err
	}
	return err.Error()
}

// explain tells the client what git's report has no words for.
func (p *pushing) explain(reason string) error {
	switch reason {
	case reasonFsck:
		return p.explainFsck()
	case reasonDiskFull:
		return p.out.say("the server has no space left for this push; its administrator has to make room\n")
	case reasonPermission:
		return p.out.say("the server may not write to this repository; its administrator has to correct the owner or the mode of its files\n")
	case reasonReadOnly:
		return p.out.say("the server's file system is read-only; its administrator has to look\n")
	case reasonStorage:
		return p.out.say("the server cannot read or write its disk; its administrator has to look\n")
	case reasonMemory:
		return p.out.say("the server ran out of memory; try again later\n")
	}
	return nil
}

// shortages are the faults of the server that git tells in the words of the C library, in lower case.
var shortages = []struct {
	text   string
	reason string
	kind   fault.Kind
}{
	{"no space left on device", reasonDiskFull, fault.Unavailable},
	{"out of diskspace", reasonDiskFull, fault.Unavailable},
	{"disk quota exceeded", reasonDiskFull, fault.Unavailable},
	{"file too large", reasonDiskFull, fault.Unavailable},
	{"read-only file system", reasonReadOnly, fault.Unavailable},
	{"permission denied", reasonPermission, fault.Internal},
	{"insufficient permission", reasonPermission, fault.Internal},
	{"operation not permitted", reasonPermission, fault.Internal},
	{"input/output error", reasonStorage, fault.Corrupt},
	{"stale file handle", reasonStorage, fault.Unavailable},
	{"attempting to allocate", reasonTooLarge, fault.Invalid}, // GIT_ALLOC_LIMIT
	{"out of memory", reasonMemory, fault.Unavailable},
	{"cannot allocate memory", reasonMemory, fault.Unavailable},
	{"too many open files", reasonInternal, fault.Unavailable},
}

// refReasons are git's reasons for single refs (receive-pack), by what they contain.
var refReasons = []struct{ text, reason string }{
	{"hook declined", reasonHook},
	{"missing necessary objects", reasonIncomplete},
	{"non-fast-forward", reasonConflict},
	{"incorrect old value", reasonConflict},
	{"already exists", reasonConflict},
	{"reference conflict", reasonConflict},
	{"no such ref", reasonConflict},
	{"prohibited", reasonPolicy},
	{"denied", reasonPolicy},
	{"hidden ref", reasonPolicy},
	{"shallow update", reasonPolicy},
	{"checked out", reasonPolicy},
	{"funny refname", reasonPolicy},
	{"invalid refname", reasonPolicy},
	{"inconsistent aliased update", reasonPolicy},
	{"broken symref", reasonPolicy},
	{"proc-receive", reasonPolicy},
}

// classify tells from git's report and its error messages why a push failed.
func classify(unpack, ref, said string) (reason string, kind fault.Kind) {
	if unpack == "" || unpack == "ok" {
		for _, r := range refReasons {
			if strings.Contains(ref, r.text) {
				return r.reason, fault.Denied
			}
		}
	}
	if reason, kind, ok := shortage(said); ok {
		return reason, kind
	}
	switch {
	case strings.Contains(said, "fsck error"), fsckFailure.MatchString(said):
		return reasonFsck, fault.Denied
	case strings.Contains(said, "exceeds maximum allowed size"):
		return reasonTooLarge, fault.Invalid
	case unpack == noQuarantine:
		return reasonInternal, fault.Internal
	case unpack != "" && unpack != "ok":
		return reasonDamaged, fault.Invalid
	case strings.Contains(said, "cannot lock ref"), strings.Contains(ref, "failed to update ref"), strings.Contains(ref, "failed to delete"),
		strings.Contains(ref, "lock"), strings.Contains(ref, "transaction"), strings.Contains(ref, "atomic"):
		return reasonConflict, fault.Denied
	}
	return reasonInternal, fault.Internal
}

func shortage(said string) (reason string, kind fault.Kind, ok bool) {
	said = strings.ToLower(said)
	for _, s := range shortages {
		if strings.Contains(said, s.text) {
			return s.reason, s.kind, true
		}
	}
	return "", 0, false
}

// reasonOf tells why a push failed of which git gave no report.
func reasonOf(ctx context.Context, err error) string {
	if reason, _, ok := shortage(err.Error()); ok {
		return reason
	}
	if _, broken := errors.AsType[*node.ClientConnError](err); broken || errors.Is(ctx.Err(), context.Canceled) {
		return reasonCancelled
	}
	switch fault.KindOf(err) {
	case fault.Invalid:
		return reasonDamaged
	case fault.Denied:
		return reasonDisabled
	case fault.NotFound:
		return reasonConflict
	case fault.Exhausted:
		return reasonBusy
	case fault.Deadline:
		return reasonTimeout
	case fault.Cancelled:
		return reasonCancelled
	case fault.Corrupt:
		return reasonStorage
	}
	return reasonInternal
}

// complaints keeps the first error messages of what git says. Safe for concurrent use.
type complaints struct {
	mu    sync.Mutex
	line  []byte
	lines []string
	size  int
}

const (
	maxComplaints    = 2 << 10 // bytes
	maxComplaintLine = 1 << 10
)

// Write adds text, which is cut anywhere.
func (c *complaints) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for rest := b; len(rest) > 0; {
		end := bytes.IndexAny(rest, "\r\n")
		part := rest
		if end >= 0 {
			part = rest[:end]
		}
		c.line = append(c.line, part[:min(len(part), maxComplaintLine-len(c.line))]...)
		if end < 0 {
			break
		}
		c.flush()
		rest = rest[end+1:]
	}
	return len(b), nil
}

// flush ends a line.
func (c *complaints) flush() {
	line := string(c.line)
	c.line = c.line[:0]
	if !strings.HasPrefix(line, "error: ") && !strings.HasPrefix(line, "fatal: ") || c.size+len(line) > maxComplaints || slices.Contains(c.lines, line) {
		return
	}
	c.size += len(line)
	c.lines = append(c.lines, clean(line, maxComplaintLine))
}

// text is what was kept, in one line.
func (c *complaints) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flush()
	return strings.Join(c.lines, "; ")
}
