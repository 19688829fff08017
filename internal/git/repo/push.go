package repo

import (
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
)

// PushPolicy is the part of a repository's own config about pushes that is needed outside git (git-config(1),
// receive.*, http.receivepack). A nil pointer means that the key is not set.
type PushPolicy struct {
	Atomic        bool  // receive.advertiseAtomic
	OffsetDeltas  bool  // repack.useDeltaBaseOffset
	Options       *bool // receive.advertisePushOptions
	SessionID     *bool // transfer.advertiseSID
	MaxSize       int64 // receive.maxInputSize, bytes; 0: no limit
	UpdateCurrent bool  // receive.denyCurrentBranch is updateInstead: a push would write into a working tree

	NoFsck  bool            // receive.fsckObjects, or without it transfer.fsckObjects, is false
	OwnFsck map[string]bool // the checks, in lower case, whose severity receive.fsck.* sets

	hidden hideRules
}

// Hides reports whether a ref is hidden from clients that push.
func (p *PushPolicy) Hides(name git.RefName) bool { return p.hidden.hides(name) }

// PushPolicy returns the configuration of pushes. Errors: Denied if it disables pushes, Corrupt for a value that git
// would refuse.
func (r *Repo) PushPolicy() (*PushPolicy, error) {
	p := &PushPolicy{Atomic: true, OffsetDeltas: true}
	allowed, checks, transferChecks := true, (*bool)(nil), true
	for _, v := range r.settings.variables {
		var err error
		switch v.key {
		case "http.receivepack":
			err = v.readBool(&allowed)
		case "receive.advertiseatomic":
			err = v.readBool(&p.Atomic)
		case "repack.usedeltabaseoffset":
			err = v.readBool(&p.OffsetDeltas)
		case "receive.advertisepushoptions":
			p.Options = new(bool)
			err = v.readBool(p.Options)
		case "transfer.advertisesid":
			p.SessionID = new(bool)
			err = v.readBool(p.SessionID)
		case "receive.maxinputsize":
			var n uint64
			n, err = v.unsigned()
			p.MaxSize = int64(min(n, 1<<62))
		case "receive.fsckobjects":
			checks = new(bool)
			err = v.readBool(checks)
		case "transfer.fsckobjects":
			err = v.readBool(&transferChecks)
		case "receive.denycurrentbranch":
			p.UpdateCurrent = strings.EqualFold(v.value, "updateInstead")
		}
		if check, ok := strings.CutPrefix(v.key, "receive.fsck."); ok && check != "skiplist" {
			if p.OwnFsck == nil {
				p.OwnFsck = make(map[string]bool)
			}
			p.OwnFsck[check] = true
		}
		if err != nil {
			return nil, err
		}
	}
	if !allowed {
		return nil, fault.New(fault.Denied, "pushing to this repository is turned off (http.receivepack)")
	}
	if checks == nil {
		checks = &transferChecks
	}
	p.NoFsck = !*checks
	var err error
	p.hidden, err = hiddenRefs(r.settings, hidePush)
	return p, err
}
