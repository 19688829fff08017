package receivepack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/repo"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/node/pushrecovery"
)

// Reasons why a push or a part of it failed: values of the label reason of a metric and of the log field reason.
const (
	reasonHook       = "hook"        // a hook, a webhook or the check of borrowed objects
	reasonFsck       = "fsck"        // an object check
	reasonPolicy     = "policy"      // a rule, the repository's configuration, or an invalid ref name
	reasonConflict   = "conflict"    // the ref has another value, or conflicts with another ref's name
	reasonLFS        = "lfs_missing" // LFS objects are missing
	reasonQuota      = "quota"       // the repository's quota
	reasonTooLarge   = "too_large"   // the pack, or one of its objects
	reasonIncomplete = "incomplete"  // objects are missing
	reasonDamaged    = "damaged"     // the pack or the request is invalid
	reasonDisabled   = "disabled"    // the server or the repository does not accept pushes
	reasonBusy       = "busy"        // a concurrency limit
	reasonTimeout    = "timeout"     // a time limit
	reasonCancelled  = "cancelled"   // the client disconnected
	reasonLocked     = "locked"      // a lock file of another process
	reasonDiskFull   = "disk_full"   // the file system or a quota
	reasonPermission = "permission"  // wrong owner or mode of the repository's files
	reasonReadOnly   = "read_only"   // the file system is mounted read-only
	reasonMemory     = "memory"      // git ran out of memory
	reasonStorage    = "storage"     // the disk or the repository is damaged
	reasonInternal   = "internal"    // another fault of the server
)

// reasons lists all reasons, for the metrics.
var reasons = []string{
	reasonHook, reasonFsck, reasonPolicy, reasonConflict, reasonLFS, reasonQuota, reasonTooLarge, reasonIncomplete,
	reasonDamaged, reasonDisabled,
	reasonBusy, reasonTimeout, reasonCancelled, reasonLocked, reasonDiskFull, reasonPermission, reasonReadOnly,
	reasonMemory, reasonStorage, reasonInternal,
}

// refusal returns why not all of a push was done, and the error for the log. The client has Git's report.
func (p *pushSession) refusal() (reason string, err error) {
	ref, why, failed := "", "", 0
	for _, u := range p.outcome.Push.Updates {
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
	details := p.gitErrors.text()
	if p.report.unpack == noQuarantine {
		details = cmp.Or(details, p.whyNoQuarantine())
	}
	reason, kind := classify(p.report.unpack, why, details)
	if refusal := p.refusals[ref]; refusal != nil {
		reason, kind = refusal.reason, fault.Denied
	}
	switch {
	case reason == reasonInternal && unpacked && p.hooks.ranProcReceive: // the words of the hook
		reason, kind = reasonHook, fault.Denied
	case (reason == reasonHook || reason == reasonLFS) && p.hooks.rejection != nil:
		details = p.hooks.rejection.Error()
		switch k := fault.KindOf(p.hooks.rejection); k {
		case fault.Unavailable, fault.Deadline, fault.Corrupt, fault.Exhausted: // the hook failed and did not refuse
			kind = k
		}
	case reason == reasonConflict:
		if p.lockMessage = p.blockedBy(); p.lockMessage != "" {
			reason, kind, details = reasonLocked, fault.Unavailable, p.lockMessage
		}
	}
	if p.policy.ByQuota && p.exceedsOwnLimit() {
		reason, kind = reasonQuota, fault.Full
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
	if details != "" {
		return reason, fault.Wrap(kind, message, errors.New(details))
	}
	return reason, fault.New(kind, "%s", message)
}

// exceedsOwnLimit reports whether the pack is larger than the configuration of the repository allows.
func (p *pushSession) exceedsOwnLimit() bool {
	return p.maxPackSize() == p.policy.MaxSize && strings.Contains(p.gitErrors.text(), packTooLarge)
}

// packTooLarge is in the message of Git about a pack of more than receive.maxInputSize.
const packTooLarge = "exceeds maximum allowed size"

// minLockAge is the age from which a lock file is reported. Concurrent pushes hold their locks for a shorter time.
const minLockAge = 5 * time.Second

// blockedBy returns a message about the lock file that made Git fail; "" if there is no old one.
func (p *pushSession) blockedBy() string {
	if p.target.Shadow != nil { // only this push uses it
		return ""
	}
	name, age := pushrecovery.FindLock(&p.record)
	if age < minLockAge {
		return ""
	}
	return fmt.Sprintf("lock file %q exists since %v: another Git process has not removed it; "+
		"if no Git process runs in the repository, its administrator can remove the file", fault.Short(name),
		age.Round(time.Second))
}

// noQuarantine is in Git's report if Git cannot write to the repository at all. The report does not have the cause.
const noQuarantine = "unable to create temporary object directory"

// whyNoQuarantine tries the same as Git, to learn the cause.
func (p *pushSession) whyNoQuarantine() string {
	dir, err := os.MkdirTemp(filepath.Join(p.target.Common, "objects"), "tmp_objdir-incoming-")
	if err == nil {
		_ = os.Remove(dir)
		return ""
	}
	if path, ok := errors.AsType[*fs.PathError](err); ok { // without the path
		err = path.Err
	}
	return err.Error()
}

// explain sends the client an explanation that Git's report lacks.
func (p *pushSession) explain(reason string) error {
	switch reason {
	case reasonFsck:
		return p.explainFsck()
	case reasonLocked:
		return p.out.say(p.lockMessage + "\n")
	case reasonTooLarge:
		if p.exceedsOwnLimit() {
			return p.out.say("the limit is a setting of the repository (receive.maxInputSize)\n")
		}
	case reasonQuota:
		if p.policy.ByQuota {
			return p.out.say("the packs of the repository would exceed its quota (" + repo.QuotaKey + ")\n")
		}
	case reasonDiskFull:
		return p.out.say("the server's disk is full; tell its administrator\n")
	case reasonPermission:
		return p.out.say("the server has no permission to write to this repository; tell its administrator\n")
	case reasonReadOnly:
		return p.out.say("the server's file system is read-only; tell its administrator\n")
	case reasonStorage:
		return p.out.say("the server cannot read or write its disk; tell its administrator\n")
	case reasonMemory:
		return p.out.say("the server ran out of memory; try again later\n")
	}
	return nil
}

// systemErrors recognizes faults of the server by the texts of the C library in Git's messages, in lower case.
var systemErrors = []struct {
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

const (
	// badPack is Git's reason for a ref whose new object has disappeared since Git found it. A collection has removed its
	// pack, or the pack was replaced by an equal one.
	badPack = "bad pack"
	// reasonCollected is added to it.
	reasonCollected = ": objects of the push were collected meanwhile, push again"
)

// refReasons classify Git's reasons for single refs by a text that they contain.
var refReasons = []struct{ text, reason string }{
	{node.RefusedBy, reasonPolicy},
	{reasonMissingLFS, reasonLFS},
	{"hook declined", reasonHook},
	{"quota exceeded", reasonQuota},
	{"changed meanwhile", reasonConflict},
	{"missing necessary objects", reasonIncomplete},
	{badPack, reasonIncomplete},
	{"shallow error", reasonIncomplete},
	{"non-fast-forward", reasonConflict},
	{"incorrect old value", reasonConflict},
	{"already exists", reasonConflict},
	{"reference conflict", reasonConflict},
	{"no such ref", reasonConflict},
	{"refname conflict", reasonConflict},
	{"reference does not exist", reasonConflict},
	{"expected symref", reasonConflict},
	{"prohibited", reasonPolicy},
	{"denied", reasonPolicy},
	{"hidden ref", reasonPolicy},
	{"shallow update", reasonPolicy},
	{"checked out", reasonPolicy},
	{"funny refname", reasonPolicy},
	{"invalid refname", reasonPolicy},
	{"inconsistent aliased update", reasonPolicy},
	{"broken symref", reasonPolicy},
	{"invalid new value", reasonPolicy}, // for example a tree for a branch
	{"bad ref", reasonPolicy},
	{"denyCurrentBranch", reasonPolicy},
	{"proc-receive", reasonHook}, // the hook failed
}

// classify determines why a push failed from Git's report and its error messages.
func classify(unpack, ref, messages string) (reason string, kind fault.Kind) {
	if unpack == "" || unpack == "ok" {
		for _, r := range refReasons {
			if strings.Contains(ref, r.text) {
				return r.reason, fault.Denied
			}
		}
	}
	if reason, kind, ok := systemError(messages); ok {
		return reason, kind
	}
	switch {
	case strings.Contains(messages, "fsck error"), fsckFailure.MatchString(messages):
		return reasonFsck, fault.Denied
	case strings.Contains(messages, packTooLarge):
		return reasonTooLarge, fault.Invalid
	case unpack == noQuarantine:
		return reasonInternal, fault.Internal
	case unpack != "" && unpack != "ok":
		return reasonDamaged, fault.Invalid
	case strings.Contains(messages, "non-commit object"): // for a branch
		return reasonPolicy, fault.Denied
	case strings.Contains(messages, "cannot lock ref"), strings.Contains(ref, "failed to update ref"),
		strings.Contains(ref, "failed to delete"), strings.Contains(ref, "lock"), strings.Contains(ref, "transaction"),
		strings.Contains(ref, "atomic"):
		return reasonConflict, fault.Denied
	}
	return reasonInternal, fault.Internal
}

func systemError(messages string) (reason string, kind fault.Kind, ok bool) {
	messages = strings.ToLower(messages)
	for _, s := range systemErrors {
		if strings.Contains(messages, s.text) {
			return s.reason, s.kind, true
		}
	}
	return "", 0, false
}

// reasonOf determines why a push failed without a report of Git.
func reasonOf(ctx context.Context, err error) string {
	if reason, _, ok := systemError(err.Error()); ok {
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
