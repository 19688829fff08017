package native

import "github.com/packhorse-git/packhorse/internal/git/pack"

// Thresholds of the estimate. docs/decisions/0012-packs-in-process.md has the reasons.
const (
	// maxEncoded is the number of objects that are always encoded in process.
	maxEncoded = 5000
	// encodedShare is the share of a larger pack's objects above which git makes the pack: one in so many.
	encodedShare = 4
	// samples is the number of entries of a source that are examined.
	samples = 256
)

// estimate returns a fallback if so many objects have to be encoded again that git, which searches for deltas between
// them, makes a much smaller pack. That is never the case if the versions of all files are known, which become deltas
// here, too. Those of objects that a bitmap has chosen are not.
func (w *writer) estimate(byBitmap bool) error {
	total := w.chosen.len()
	if total <= maxEncoded || w.versions != nil && len(w.versions) < maxVersions && !byBitmap {
		return nil
	}
	encoded := len(w.chosen.loose)
	for i := range w.view.sources {
		n, err := w.estimateSource(i)
		if err != nil {
			return err
		}
		encoded += n
	}
	if encoded > maxEncoded && encoded > total/encodedShare {
		return &fallback{reason: reasonEncode}
	}
	return nil
}

// hasBase reports whether the base of a delta is in the pack, or the client has it.
func (w *writer) hasBase(it *item) bool {
	raw, ok := w.baseID(it)
	if !ok {
		return false
	}
	at, ok := w.view.find(raw)
	if !ok {
		return w.isKnownLoose(raw)
	}
	return w.chosen.has(at) || w.hasClient(at)
}

// estimateSource returns the approximate number of a source's chosen objects that cannot be copied.
func (w *writer) estimateSource(i int) (int, error) {
	n := w.chosen.count(i)
	if n == 0 {
		return 0, nil
	}
	source := w.view.sources[i]
	if _, ok := source.CRC(0); !ok { // without checksums nothing is copied
		return n, nil
	}
	order, err := source.Order()
	if err != nil {
		return 0, err
	}
	each, step := w.chosen.byRank(i, order), max(n/samples, 1)
	examined, encoded := 0, 0
	for at := 0; ; at++ {
		rank, ok := each()
		if !ok {
			break
		}
		if at%step != 0 {
			continue
		}
		examined++
		it := item{place: place{i, int(order[rank])}}
		if it.start, err = source.Offset(it.pos); err != nil {
			return 0, err
		}
		var b [pack.MaxEntryHeader]byte
		read, err := source.File.ReadAt(b[:], it.start)
		if read == 0 {
			return 0, err
		}
		it.entry, err = pack.ParseEntry(b[:read], w.view.format.Size())
		if err != nil || it.entry.IsDelta() && !w.hasBase(&it) {
			encoded++
		}
	}
	return n * encoded / max(examined, 1), nil
}
