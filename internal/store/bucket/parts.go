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

// sendPart uploads one part, and returns its ETag.
type sendPart func(ctx context.Context, upload string) (etag string, err error)

// putParts uploads a file in parts. It hashes each part for the storage, and all of them for the caller's checksum.
func (s *S3) putParts(ctx context.Context, key string, body io.ReaderAt, size int64, sum [32]byte) error {
	whole := sha256.New()
	return s.inParts(ctx, key, size, func(number int, offset, length int64) (sendPart, error) {
		hash := sha256.New()
		if _, err := io.Copy(io.MultiWriter(whole, hash), io.NewSectionReader(body, offset, length)); err != nil {
			return nil, err
		}
		if offset+length == size && [32]byte(whole.Sum(nil)) != sum {
			return nil, corruptError{"the file does not match its SHA-256"}
		}
		return func(ctx context.Context, upload string) (string, error) {
			part, err := s.puts.PutObjectPart(ctx, s.bucket, s.prefix+key, upload, number,
				io.NewSectionReader(body, offset, length), length,
				minio.PutObjectPartOptions{Sha256Hex: hex.EncodeToString(hash.Sum(nil))})
			return part.ETag, err
		}, nil
	})
}

// copyParts copies an object in parts.
func (s *S3) copyParts(ctx context.Context, from, to string, size int64) error {
	return s.inParts(ctx, to, size, func(number int, offset, length int64) (sendPart, error) {
		return func(ctx context.Context, upload string) (string, error) {
			part, err := s.puts.CopyObjectPart(ctx, s.bucket, s.prefix+from, s.bucket, s.prefix+to, upload, number, offset,
				length, nil)
			return part.ETag, err
		}, nil
	})
}

// inParts makes an object of parts. It calls prepare for each part, in their order, and sends some at the same time.
func (s *S3) inParts(ctx context.Context, key string, size int64,
	prepare func(number int, offset, length int64) (sendPart, error)) (err error) {
	var upload string
	err = repeat(ctx, func() error {
		upload, err = s.puts.NewMultipartUpload(ctx, s.bucket, s.prefix+key, minio.PutObjectOptions{})
		return err
	})
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
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(partsParallel)
	for i := range parts {
		offset := int64(i) * partSize
		var send sendPart
		if send, err = prepare(i+1, offset, min(partSize, size-offset)); err != nil {
			break
		}
		group.Go(func() error {
			return repeat(inner, func() error {
				etag, err := send(inner, upload)
				parts[i] = minio.CompletePart{PartNumber: i + 1, ETag: etag}
				return err
			})
		})
		if inner.Err() != nil {
			break
		}
	}
	if groupErr := group.Wait(); err == nil {
		err = groupErr
	}
	if err != nil {
		return err
	}
	return s.complete(ctx, key, upload, parts, size)
}

// complete makes the object of its parts. If that fails, the object may be there nevertheless: when the answer to a
// completion was lost, the storage does not know the upload any more.
func (s *S3) complete(ctx context.Context, key, upload string, parts []minio.CompletePart, size int64) error {
	err := repeat(ctx, func() error {
		_, err := s.puts.CompleteMultipartUpload(ctx, s.bucket, s.prefix+key, upload, parts, minio.PutObjectOptions{})
		return err
	})
	if err == nil {
		return nil
	}
	object, statErr := s.reads.StatObject(ctx, s.bucket, s.prefix+key, minio.StatObjectOptions{})
	if statErr != nil || object.Size != size {
		return err
	}
	return nil
}
