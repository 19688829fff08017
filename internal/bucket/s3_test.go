package bucket_test

import (
	"testing"

	"github.com/packhorse-git/packhorse/internal/bucket"
	"github.com/packhorse-git/packhorse/internal/bucket/buckettest"
)

func TestVersitygw(t *testing.T) {
	t.Parallel()
	b := buckettest.Versitygw(t).Bucket("a/prefix")
	buckettest.Suite(t, b)
	testProbe(t, b)
}

func testProbe(t *testing.T, b bucket.Bucket) {
	t.Run("Probe", func(t *testing.T) {
		report, err := bucket.Probe(t.Context(), b, bucket.ProbeOptions{Thorough: !testing.Short()})
		t.Logf("%+v", report)
		if err != nil || checksFailed(report) != "" {
			t.Errorf("Probe = %v, failed %q, want success", err, checksFailed(report))
		}
		if left, err := b.List(t.Context(), "probe/", "", 10); err != nil || len(left) > 0 {
			t.Errorf("Probe left %v, %v", left, err)
		}
	})
}
