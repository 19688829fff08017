package packcache

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"strconv"
	"strings"

	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// sidecar has the properties of an entry's files, for their verification after a restart. The package comment has the
// format.
type sidecar struct {
	key        packsource.Key
	repository string // packsource.Repository.Incarnation
	length     int64
	objects    uint32
	crc        uint32 // CRC-32C of the data file

	indexLength int64 // 0: the entry has no index
	indexCRC    uint32
}

// Versions of an entry. Raise both when packs that were made before must not be used any more.
const (
	sidecarVersion = versionPrefix + "4"
	indexedVersion = versionPrefix + "5" // with an index

	versionPrefix = "packhorse cache entry "
	maxSidecar    = 1024 // bytes; more is not a sidecar
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var (
	errSidecar = errors.New("not a sidecar of this format")
	errVersion = errors.New("a sidecar of another version")
)

func (s *sidecar) encode() []byte {
	version := sidecarVersion
	if s.indexLength > 0 {
		version = indexedVersion
	}
	b := fmt.Appendf(nil, "%s\nkey %v\nrepository %q\nlength %d\nobjects %d\ncrc32c %08x\n",
		version, s.key, s.repository, s.length, s.objects, s.crc)
	if s.indexLength > 0 {
		b = fmt.Appendf(b, "index length %d\nindex crc32c %08x\n", s.indexLength, s.indexCRC)
	}
	return fmt.Appendf(b, "sum %08x\n", crc32.Checksum(b, castagnoli))
}

// parseSidecar accepts exactly what encode writes. The error is errVersion if another version has written it.
func parseSidecar(b []byte) (s sidecar, err error) {
	lines := strings.Split(string(b), "\n")
	indexed := lines[0] == indexedVersion
	if strings.HasPrefix(lines[0], versionPrefix) && !indexed && lines[0] != sidecarVersion {
		return s, errVersion
	}
	if len(b) > maxSidecar || !indexed && (lines[0] != sidecarVersion || len(lines) != 8) || indexed && len(lines) != 10 {
		return s, errSidecar
	}
	value := func(line int, name string) string {
		v, ok := strings.CutPrefix(lines[line], name+" ")
		if !ok {
			err = errSidecar
		}
		return v
	}
	number := func(v string, base int, limit uint64) uint64 {
		n, e := strconv.ParseUint(v, base, 64)
		if e != nil || n > limit {
			err = errSidecar
		}
		return n
	}
	key, ok := packsource.ParseKey(value(1, "key"))
	if !ok {
		err = errSidecar
	}
	repository, e := strconv.Unquote(value(2, "repository"))
	if e != nil {
		err = errSidecar
	}
	s = sidecar{
		key:        key,
		repository: repository,
		length:     int64(number(value(3, "length"), 10, math.MaxInt64)),
		objects:    uint32(number(value(4, "objects"), 10, math.MaxUint32)),
		crc:        uint32(number(value(5, "crc32c"), 16, math.MaxUint32)),
	}
	if indexed {
		s.indexLength = int64(number(value(6, "index length"), 10, math.MaxInt64))
		s.indexCRC = uint32(number(value(7, "index crc32c"), 16, math.MaxUint32))
	}
	if err == nil && !bytes.Equal(s.encode(), b) {
		err = errSidecar // the sum is wrong, or a number is written in another way
	}
	return s, err
}
