# Two stages: what installs stays out of what runs. Every package comes from the lock file, by its hash.
FROM python:3.13-slim-bookworm AS build
WORKDIR /build
RUN python -m venv --without-pip /opt/quadriga
COPY requirements-extras.lock ./
# What no server uses goes: the packages' own tests, and headers to compile against.
RUN pip --python /opt/quadriga install --no-cache-dir --no-deps --only-binary=:all: --require-hashes --requirement requirements-extras.lock \
    && find /opt/quadriga -type d \( -name tests -o -name test -o -path '*/pyarrow/include' \) -prune -exec rm -r {} +
COPY pyproject.toml README.md LICENSE ./
COPY engine engine
COPY extras extras
COPY proto proto
COPY tasks tasks
COPY store store
COPY monitor monitor
COPY src src
COPY client client
RUN pip --python /opt/quadriga install --no-cache-dir --no-deps .

FROM python:3.13-slim-bookworm
# A platform may choose the user: then it is of the group 0, to which the folder belongs, too.
RUN useradd --uid 10001 --home-dir /data --no-create-home quadriga && install --directory --owner=10001 --group=0 --mode=0770 /data
COPY --from=build /opt/quadriga /opt/quadriga
ENV PATH=/opt/quadriga/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    QUADRIGA_HOST=0.0.0.0 \
    QUADRIGA_MODELS=/models \
    QUADRIGA_DATA=/data
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 8080 8081
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8080/v2/health/live', timeout=2)"]
ENTRYPOINT ["quadriga"]
CMD ["serve"]
