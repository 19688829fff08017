package native

import (
	"io"

	"github.com/packhorse-git/packhorse/internal/git/pktline"
)

// unframed reads a pack from a file of full packets, as framed writes it.
type unframed struct{ file io.ReaderAt }

// unframedSize returns the size of the pack in a file of n framed bytes.
func unframedSize(n int64) int64 {
	packets := (n + pktline.MaxLine - 1) / pktline.MaxLine
	return n - packets*bandHeader
}

// ReadAt reads bytes of the pack. It reads the packets into p and closes the gaps, so p may lose its content behind the
// result.
func (u unframed) ReadAt(p []byte, off int64) (n int, err error) {
	for n < len(p) {
		packet, at := off/pktline.MaxBandData, off%pktline.MaxBandData
		size := min(len(p)-n, int(pktline.MaxBandData-at))
		read, err := u.file.ReadAt(p[n:n+size], packet*pktline.MaxLine+bandHeader+at)
		n += read
		off += int64(read)
		if err != nil && read < size {
			return n, err
		}
	}
	return n, nil
}
