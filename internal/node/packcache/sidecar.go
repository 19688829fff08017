package packcache

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// sidecar has the properties of an entry's files, for their verification after a restart. The package comment has the
// format.
type sidecar struct {
	Key         string `json:"key"`        // packsource.Key
	Repository  string `json:"repository"` // packsource.Repository.Incarnation
	Length      int64  `json:"length"`     // of the data file
	Objects     uint32 `json:"objects"`    // in the pack; 0 if not known
	CRC         uint32 `json:"crc32c"`     // of the data file
	IndexLength int64  `json:"index_length"`
	IndexCRC    uint32 `json:"index_crc32c"` // if the entry has an index
}

const (
	versionPrefix  = "packhorse cache entry "
	sidecarVersion = versionPrefix + "6" // raise it when packs that were made before must not be used any more
	maxSidecar     = 1024                // bytes; more is not a sidecar
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var (
	errSidecar = errors.New("not a sidecar of this format")
	errVersion = errors.New("a sidecar of another version")
)

func (s *sidecar) encode() []byte {
	text, _ := json.Marshal(s) // it has no field that can fail
	b := fmt.Appendf(nil, "%s\n%s\n", sidecarVersion, text)
	return fmt.Appendf(b, "%08x\n", crc32.Checksum(b, castagnoli))
}

// parseSidecar accepts exactly what encode writes for a key. The error is errVersion if another version has written it.
func parseSidecar(b []byte, key packsource.Key) (s sidecar, err error) {
	version, rest, _ := bytes.Cut(b, []byte{'\n'})
	text, _, _ := bytes.Cut(rest, []byte{'\n'})
	switch {
	case string(version) != sidecarVersion && bytes.HasPrefix(version, []byte(versionPrefix)):
		return s, errVersion
	case json.Unmarshal(text, &s) != nil || !bytes.Equal(s.encode(), b):
		return sidecar{}, errSidecar
	case s.Key != key.String():
		return sidecar{}, fmt.Errorf("the sidecar is of another pack: key %s", s.Key)
	}
	return s, nil
}
