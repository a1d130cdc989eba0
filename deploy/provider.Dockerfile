# The image with another build of onnxruntime, for other execution providers: see docs/speed.md.
# It takes the place of the default one, since two builds share one folder, and neither would be whole.
ARG IMAGE=quadriga
FROM ${IMAGE}
ARG ONNXRUNTIME
USER 0
RUN pip --python /opt/quadriga uninstall --yes onnxruntime && pip --python /opt/quadriga install --no-cache-dir --only-binary=:all: "${ONNXRUNTIME:?such as onnxruntime-openvino==1.24.1}"
USER 10001:10001
