package bucket

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"time"

	"github.com/minio/minio-go/v7"
	"golang.org/x/sync/errgroup"
)

const (
	partsParallel = 4
	maxParts      = 10_000 // by the protocol
)

// putParts uploads a file in parts. It hashes each part for the storage, and all of them for the caller's checksum.
func (s *S3) putParts(ctx context.Context, key string, body io.ReaderAt, size int64, sum [32]byte) (err error) {
	upload, err := s.puts.NewMultipartUpload(ctx, s.bucket, s.prefix+key, minio.PutObjectOptions{})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil { // the storage keeps parts until they are aborted
			abort, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			_ = s.reads.AbortMultipartUpload(abort, s.bucket, s.prefix+key, upload)
		}
	}()
	partSize := max(s.partSize, (size+maxParts-1)/maxParts)
	parts := make([]minio.CompletePart, (size+partSize-1)/partSize)
	whole := sha256.New()
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(partsParallel)
	for i := range parts {
		offset := int64(i) * partSize
		section := io.NewSectionReader(body, offset, min(partSize, size-offset))
		hash := sha256.New()
		if _, err = io.Copy(io.MultiWriter(whole, hash), section); err != nil {
			break
		}
		group.Go(func() error {
			part, err := s.puts.PutObjectPart(inner, s.bucket, s.prefix+key, upload, i+1, section, section.Size(),
				minio.PutObjectPartOptions{Sha256Hex: hex.EncodeToString(hash.Sum(nil))})
			parts[i] = minio.CompletePart{PartNumber: i + 1, ETag: part.ETag}
			return err
		})
		if inner.Err() != nil {
			break
		}
	}
	if groupErr := group.Wait(); err == nil {
		err = groupErr
	}
	if err == nil && [32]byte(whole.Sum(nil)) != sum {
		err = corruptError{"the file does not match its SHA-256"}
	}
	if err != nil {
		return err
	}
	_, err = s.puts.CompleteMultipartUpload(ctx, s.bucket, s.prefix+key, upload, parts, minio.PutObjectOptions{})
	return err
}
