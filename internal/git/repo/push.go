package repo

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
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
	MaxSize       int64 // receive.maxInputSize or what the quota leaves, bytes; 0: no limit
	ByQuota       bool  // MaxSize is what the quota leaves
	UpdateCurrent bool  // receive.denyCurrentBranch is updateInstead: a push would write into a working tree

	NoFsck  bool            // receive.fsckObjects, or without it transfer.fsckObjects, is false
	OwnFsck map[string]bool // the checks, in lower case, whose severity receive.fsck.* sets

	hidden hideRules
}

// Hides reports whether a ref is hidden from clients that push.
func (p *PushPolicy) Hides(name git.RefName) bool { return p.hidden.hides(name) }

// QuotaKey is the key of the maximum size of all packs in bytes.
const QuotaKey = "packhorse.quota"

// CheckWritable returns an error of kind Denied if the configuration makes the repository read-only.
func (r *Repo) CheckWritable() error {
	for _, key := range []string{"packhorse.archived", "packhorse.readonly"} {
		isSet, err := r.settings.Bool(key, false)
		switch {
		case err != nil:
			return err
		case isSet && key == "packhorse.archived":
			return fault.New(fault.Denied, "the repository is archived and can only be read (packhorse.archived)")
		case isSet:
			return fault.New(fault.Denied, "the repository is read-only (packhorse.readOnly)")
		}
	}
	return nil
}

// emptyPack is the maximum size of a pack without objects, which a full quota allows.
const emptyPack = 12 + 32

// limitToQuota limits MaxSize to what the quota leaves. In a store the commit of a push does that.
func (r *Repo) limitToQuota(p *PushPolicy) error {
	i, isSet := r.settings.last[QuotaKey]
	if !isSet || r.IsCopy() {
		return nil
	}
	quota, err := r.settings.variables[i].unsigned()
	if err != nil || quota == 0 {
		return err
	}
	packs, _, err := r.PackBytes()
	if err != nil {
		return err
	}
	left := int64(min(quota, 1<<62)) - packs
	if p.MaxSize == 0 || left < p.MaxSize {
		p.MaxSize, p.ByQuota = max(left, emptyPack), true
	}
	return nil
}

// PackBytes returns the sizes of the repository's own packs and of their indexes in bytes.
func (r *Repo) PackBytes() (packs, indexes int64, err error) {
	entries, err := os.ReadDir(filepath.Join(r.Common, "objects/pack"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, 0, fault.Wrap(fault.Unavailable, "cannot read the sizes of the packs", err)
	}
	for _, e := range entries {
		size := func() int64 {
			if info, err := e.Info(); err == nil { // otherwise it was just removed
				return info.Size()
			}
			return 0
		}
		switch filepath.Ext(e.Name()) {
		case ".pack":
			packs += size()
		case ".idx":
			indexes += size()
		}
	}
	return packs, indexes, nil
}

// PushPolicy returns the configuration of pushes. Errors: Denied if it disables pushes, Corrupt for a value that git
// would refuse.
func (r *Repo) PushPolicy() (*PushPolicy, error) {
	if err := r.CheckWritable(); err != nil {
		return nil, err
	}
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
	err := r.limitToQuota(p)
	if err != nil {
		return nil, err
	}
	p.hidden, err = hiddenRefs(r.settings, hidePush)
	return p, err
}
